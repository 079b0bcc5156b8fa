// SPDX-License-Identifier: BSD-3-Clause
// A file descriptor that is closed with its owner, and writes that end only when all is written. Whoever calls says which
// file it was and what helps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace sfsdp {

class Fd {
 public:
  explicit Fd(int number = -1) : number_(number) {}
  ~Fd();
  Fd(Fd&& other) noexcept : number_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_;
};

// A short write goes on where it stopped.  returns: false, and errno says why
bool write_fully(int fd, std::span<const std::byte> bytes);
// The same from `offset` on; the descriptor's own place stays.
bool write_fully(int fd, std::span<const std::byte> bytes, int64_t offset);

}  // namespace sfsdp

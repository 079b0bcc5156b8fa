// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace sfsdp::train {

// XXH3, 64 bits, seed 0, of bytes that come in pieces: the number that `xxhsum -H3` prints for all of them.
class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(ContentHash&&) noexcept;
  ContentHash& operator=(ContentHash&&) noexcept;

  void add(std::span<const uint8_t> bytes);
  void add(std::string_view text);
  uint64_t value() const;  // of what was added so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
// Memory from the system that grows without moving, private to this process or to be read by others of its host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sfsdp/base/fd.h"

namespace sfsdp {

// How another process of this user finds a shared memory. It is gone with its last process, killed or not.
struct MemoryId {
  int32_t pid = 0;
  int32_t fd = -1;                 // of that process
  uint64_t device = 0, inode = 0;  // tell it from another file of the same number
  uint64_t bytes = 0;              // of addresses
};

class GrowingMemory {
 public:
  enum class Kind : uint8_t { Private, Shared };
  // Addresses for `reserved` bytes, none of which takes memory yet.   throws: std::system_error
  GrowingMemory(Kind kind, int64_t reserved);
  ~GrowingMemory();  // its pages go, also where other processes have them mapped
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;

  // Makes it at least so large. What it holds stays, at the same address. New bytes are zeros, and their pages are there.
  //   throws: std::system_error where the system does not give that much
  void grow(int64_t bytes);

  std::byte* begin() const { return begin_; }
  int64_t bytes() const { return bytes_; }
  int64_t reserved() const { return reserved_; }
  MemoryId id() const;  // of a shared one

 private:
  void commit(int64_t from, int64_t bytes);

  const int32_t owner_;  // the process
  std::byte* begin_ = nullptr;
  int64_t bytes_ = 0, reserved_ = 0;
  Fd fd_;  // none: private
};

// A shared memory of another process, which this one may read.
class PeerMemory {
 public:
  explicit PeerMemory(const MemoryId& id);  // throws: std::system_error
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  const std::byte* begin() const { return begin_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const std::byte* begin_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace sfsdp

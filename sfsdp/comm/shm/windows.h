// SPDX-License-Identifier: BSD-3-Clause
// The shared memories of this process, so that a call knows which of its spans peers can read where they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "sfsdp/base/growing_memory.h"

namespace sfsdp::comm {

// A place in the shared memory of some process.
struct SharedPlace {
  MemoryId memory;
  uint64_t offset = 0;
};

// Thread-safe. A window is forgotten when its owner lets it go.
class Windows {
 public:
  // throws: std::system_error
  std::shared_ptr<GrowingMemory> make(int64_t reserved_bytes);
  std::optional<SharedPlace> find(std::span<const std::byte> bytes) const;

 private:
  struct Window {
    const std::byte* begin;
    const std::byte* end;  // of its addresses
    MemoryId id;
    std::weak_ptr<GrowingMemory> memory;
  };
  mutable std::mutex mutex_;
  std::vector<Window> windows_;
};

}  // namespace sfsdp::comm

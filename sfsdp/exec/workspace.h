// SPDX-License-Identifier: BSD-3-Clause
// The workspace of a lane: memory that a kernel uses while it runs and nobody sees. Blocks go to the lowest place that is free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace sfsdp::exec {

class Workspace {
 public:
  static constexpr size_t kAlignment = 64;

  // The memory grows in place (RankMemory); it must outlive the workspace's blocks.
  //   begin: aligned
  void set_memory(std::byte* begin, size_t bytes);
  // Aligned; null where there is no room.
  std::byte* allocate(size_t bytes);
  // From any thread.
  void free(const std::byte* block);
  // Blocks that have not been freed.
  size_t blocks() const;

 private:
  struct Block {
    size_t begin, end;
  };
  mutable std::mutex mutex_;
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
  std::vector<Block> blocks_;  // by place
};

}  // namespace sfsdp::exec

// SPDX-License-Identifier: BSD-3-Clause
// Where each buffer of a step lies on a rank: lifetimes from the total order, addresses for all of it before the first
// step. Parameters and carried state lie outside, in storage of their own; what is carried in flight is a buffer from the
// step's begin to its last reader, and from its start to the end.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::plan {

// Memory that one op makes and that views of it share.
struct Buffer {
  const ir::Value* value = nullptr;
  int64_t bytes = 0;   // rounded up to the alignment
  int64_t first = 0;   // position of the first op of the kernel that makes it
  int64_t last = 0;    // position of the last op of the last kernel that reads it; the end of the graph for results
  int64_t offset = 0;  // in the arena
};

struct MemoryPlan {
  std::vector<Buffer> buffers;  // in order of `first`
  int64_t state_bytes = 0;      // parameters, moments, counters
  int64_t arena_bytes = 0;      // what the addresses need
  int64_t live_bytes = 0;       // most that is alive at once: no arena can be smaller
  int64_t peak_position = 0;    // the first op at which that much is alive
  int64_t peak() const { return state_bytes + arena_bytes; }
};

struct MemoryOptions {
  int64_t alignment = 256;
  // A collective is over where it starts, as in the reference executor: what it sends may go before the wait.
  bool blocking = false;
  // A peak of so many bytes, state included, is not made smaller, nor one that cannot be as small; 0: as small as can be.
  int64_t enough_bytes = 0;
};

// What is alive when, without addresses: MemoryPlan::buffers with all offsets 0. A kernel (cost/kernels.h) runs as one: what
// it reads and makes is alive from its first op to its last, what it alone makes and reads has no memory.
std::vector<Buffer> find_buffers(const ir::Graph& graph, const MemoryOptions& options = {});
// Bytes of parameters, moments and counters, each rounded up.
int64_t state_bytes(const ir::Graph& graph, int64_t alignment);
MemoryPlan plan_memory(const ir::Graph& graph, const MemoryOptions& options = {});

// Buffers alive at `position`, largest first, summed by a name that the caller gives each.
struct Share {
  std::string name;
  int64_t bytes = 0;
};
std::vector<Share> alive_at(const MemoryPlan& plan, int64_t position,
                            const std::function<std::string(const ir::Value&)>& name_of);

// "" or what is wrong: two buffers that are alive at once overlap, one leaves the arena or is misaligned.
std::string check_memory_plan(const MemoryPlan& plan, int64_t alignment = 256);

}  // namespace sfsdp::plan

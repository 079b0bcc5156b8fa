// SPDX-License-Identifier: BSD-3-Clause
// The memory of a rank under PyTorch's FSDP, eager or compiled block by block: its program of allocations and frees, run
// through its caching allocator. For the graph as data_parallel and the passes leave it, on GPUs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/plan/caching_allocator.h"
#include "sfsdp/sim/pytorch/lifetimes.h"

namespace sfsdp::sim {

// Streams that own memory. What one has had, no other gets: FSDP gathers and reduces on streams of their own.
enum class PyTorchStream : uint8_t { Compute, AllGather, Reduce };
inline constexpr size_t kPyTorchStreams = 3;
std::string_view to_string(PyTorchStream stream);

struct PyTorchMemory {
  int64_t state_bytes = 0;      // parameters' shards and moments
  int64_t allocated_bytes = 0;  // most that tensors have at once, state included
  int64_t held_bytes = 0;       // what the allocator needs at least: CachingAllocator::peak_held
  int64_t reserved_bytes = 0;   // what the allocator holds in the end; PyTorch's max_memory_reserved
  std::array<int64_t, kPyTorchStreams> reserved_by_stream = {};
  // What tensors have where that is most: the op that made each, nullptr for what belongs to none, and its bytes.
  std::vector<std::pair<const ir::Op*, int64_t>> at_peak;
  std::string peak_at;  // the opcode and module of the op that asks for the last of it
  // What the allocator does in each step where it would hold more than the room: the mean of steps four to six.
  double retries = 0;      // times that it gives back all it can and asks again
  double moved_bytes = 0;  // given back to the device, and asked for
};

//   room: bytes of the device that tensors can have
PyTorchMemory pytorch_memory(const ir::Graph& graph, const PyTorchOptions& options,
                             plan::CachingAllocator::Segments segments,
                             int64_t room = plan::CachingAllocator::kEndless);

}  // namespace sfsdp::sim

// SPDX-License-Identifier: BSD-3-Clause
// Where each buffer of a step lies on a rank: lifetimes from the total order, addresses in regions for all of it before the
// first step. What collectives touch shares the window with what they do not: their peaks are at other times, and two arenas
// took up to half as much again (70B on 16 devices).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sfsdp/cost/target.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::plan {

// What memory is for. Each region is one allocation.
enum class Region : uint8_t {
  State,   // parameters, moments, counters, buffers, from step to step
  Window,  // what comes and goes, and all state that collectives touch: in whole pages, at equal offsets on all ranks
  Io,      // what the host writes: kHostValues, then the batch of one micro-batch
  Constant,  // tensors and numbers that the program holds; those that collectives send lie in the window, written anew before a
             // program that takes over from another one
};
inline constexpr size_t kRegions = 4;
std::string_view to_string(Region region);

// A number that kernels read and the host writes, at the begin of region io.
struct HostValue {
  std::string_view name;
  ir::DType dtype;
  int64_t offset;
  bool operator==(const HostValue&) const = default;
};
// lr and step before each step, micro_batch before each micro-batch, seed once: its 64 bits, read as an unsigned number.
inline constexpr std::array<HostValue, 4> kHostValues = {{{"lr", ir::DType::f64, 0},
                                                          {"step", ir::DType::i64, 8},
                                                          {"seed", ir::DType::i64, 16},
                                                          {"micro_batch", ir::DType::i64, 24}}};
inline constexpr int64_t kHostBytes = 32;

// Memory that one op makes and that views of it share.
struct Buffer {
  const ir::Value* value = nullptr;
  int64_t bytes = 0;   // rounded up to the alignment
  int64_t first = 0;   // position of the first op of the kernel that makes it
  int64_t last = 0;    // position of the last op of the last kernel that reads it; the end of the graph for results
  int64_t offset = 0;  // in its region
  Region region = Region::Window;
  bool carried = false;  // a sum: what a micro-batch leaves in it, the next one adds to
};

// A value that lies in the buffer of another one: the part of a bucket that its op writes, or what a kernel writes over
// an operand that it is the last to read.
struct Inside {
  const ir::Value* value = nullptr;
  const ir::Value* host = nullptr;  // which has a buffer
  int64_t offset = 0;               // bytes from the buffer's begin
  bool operator==(const Inside&) const = default;
};

// A view that does not begin where the memory does that it shares.
struct View {
  const ir::Value* value = nullptr;
  int64_t offset = 0;  // bytes from the begin of its storage
  // By axis, what a step along it adds to that, where ranks see other parts.
  std::vector<std::pair<std::string, int64_t>> steps = {};
  bool operator==(const View&) const = default;
};

// State of the run that the graph does not read: it lies there all the time.
struct UnreadState {
  std::string name;  // in the storage layout
  Region region = Region::State;
  int64_t offset = 0, bytes = 0;
  bool operator==(const UnreadState&) const = default;
};

struct StorageLayout;  // storage_layout.h

struct MemoryPlan {
  std::vector<Buffer> state;  // in the graph's order; what collectives send as it is stored lies at the window's begin
  std::vector<UnreadState> unread;                  // in the layout's order
  std::vector<Buffer> constants;                    // in the graph's order, for the whole step
  std::vector<Buffer> buffers;                      // in order of `first`
  std::vector<Inside> inside;                       // in the graph's order
  std::vector<View> views;                          // in the graph's order; others begin where their storage does
  std::array<int64_t, kRegions> region_bytes = {};  // what the addresses need, State and Window with what is kept
  int64_t state_bytes = 0;                          // parameters, moments, counters, buffers, also those not read
  int64_t program_bytes = 0;                        // constants, and the numbers that the host writes
  int64_t arena_bytes = 0;                          // what the addresses of `buffers` need, over all regions
  int64_t live_bytes = 0;     // most of `buffers` that is alive at once: no arenas can be smaller together
  int64_t peak_position = 0;  // the first op at which that much is alive
  std::vector<int64_t>
      workspaces;  // bytes by lane: of the largest kernel of the compute lane, then of each lane of collectives
  int64_t workspace_bytes() const { return std::accumulate(workspaces.begin(), workspaces.end(), int64_t{0}); }
  int64_t peak() const { return state_bytes + program_bytes + arena_bytes + workspace_bytes(); }
};

struct MemoryOptions {
  cost::Target target = cost::cpu_target();
  // As in the reference executor: a collective is over where it starts, so what it sends may go before the wait; memory is
  // allocated value by value, so there are no regions and no workspaces, and no value lies inside another's buffer.
  bool blocking = false;
  // A peak of so many bytes, state included, is not made smaller, nor one that cannot be as small; 0: as small as can be.
  int64_t enough_bytes = 0;
  // Where the state of the run lies: what the layout has is placed there, other state after it. nullptr: decided here.
  const StorageLayout* layout = nullptr;
};

// What is alive when, without addresses: MemoryPlan::buffers with all offsets 0. A kernel (cost/kernels.h) runs as one: what
// it reads and makes is alive from its first op to its last, what it alone makes and reads has no memory.
struct Lifetimes {
  std::vector<Buffer> buffers;
  std::vector<Inside> inside;
};
struct OwnMemory;  // plan/in_place.h
//   own: takes the results that lie over no operand, and why; nullptr: nobody asks
Lifetimes find_buffers(const ir::Graph& graph, const MemoryOptions& options = {},
                       std::vector<OwnMemory>* own = nullptr);
MemoryPlan plan_memory(const ir::Graph& graph, const MemoryOptions& options = {});

// Buffers alive at `position`, largest first, summed by a name that the caller gives each.
struct Share {
  std::string name;
  int64_t bytes = 0;
};
std::vector<Share> alive_at(const MemoryPlan& plan, int64_t position,
                            const std::function<std::string(const ir::Value&)>& name_of);

// "" or what is wrong: two buffers of a region that are alive at once overlap, one lies over state that is not read, leaves its
// region or is misaligned.
std::string check_memory_plan(const MemoryPlan& plan, const cost::Target& target = cost::cpu_target());

}  // namespace sfsdp::plan

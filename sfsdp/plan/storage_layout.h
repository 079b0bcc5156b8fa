// SPDX-License-Identifier: BSD-3-Clause
// The final record of a run's state: what each parameter, moment, counter and buffer is, which part of it a rank has, and where
// that lies. The first graph of a run decides it, every other graph on that state is planned against it. State that only a
// later graph reads is appended, and nothing moves.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/plan/memory_plan.h"

namespace sfsdp::plan {

// The format of the text. A layout of another version is refused: each start makes its own, checkpoints do not hold it.
inline constexpr int64_t kStorageLayoutVersion = 1;

enum class StateKind : uint8_t {
  Parameter,
  Moment,   // the optimizer's, of a parameter
  Counter,  // the optimizer's count of updates
  Buffer,   // the module's, whole on every rank: each has its own where a step writes it (running statistics)
};
std::string_view to_string(StateKind kind);

// How ranks share out one dimension, or the elements of a flat buffer: parts in the order of the ranks, side by side.
struct Cut {
  AxisList axes = {};                 // outer first, as dp_shard cuts what tp has cut; none: nothing is cut
  std::vector<int64_t> lengths = {};  // by rank of the group of these axes; empty: torch.chunk's rule, axis after axis
  bool operator==(const Cut&) const = default;
};

// A tensor within a flat buffer. Model axes cut the tensor, then the buffer's own axes cut all that lies in it.
struct FlatMember {
  std::string name;
  std::vector<int64_t> shape = {};  // global
  std::vector<Cut> cuts = {};       // by dimension, over model axes; empty: none
  int64_t offset = 0;               // of its first element in the whole buffer, the same on all ranks
  bool operator==(const FlatMember&) const = default;
};

struct StateEntry {
  std::string name;  // of the param or state in graphs
  StateKind kind = StateKind::Parameter;
  ir::DType dtype = ir::DType::f32;
  std::vector<int64_t> shape = {};       // global; a flat buffer's elements, with padding
  std::vector<Cut> cuts = {};            // by dimension; empty: none
  std::vector<FlatMember> members = {};  // of a flat buffer of parameters, in order of their offsets
  std::string of = {};            // whose moment it is: that one's members are this one's, with a suffix (members_of)
  Region region = Region::State;  // or Window: what the first graph's collectives send as it is stored
  int64_t offset = 0;             // bytes from the region's begin, the same on all ranks
  int64_t bytes = 0;              // that it takes on every rank: room for the largest part, rounded up
  bool operator==(const StateEntry&) const = default;
};

struct StorageLayout {
  std::vector<MeshAxis> mesh = {};
  std::vector<StateEntry> entries = {};
  bool operator==(const StorageLayout&) const = default;
};

// nullptr: no such entry.
const StateEntry* find(const StorageLayout& layout, std::string_view name);
std::vector<FlatMember> members_of(const StorageLayout& layout, const StateEntry& entry);

// What is stored alike and sent together: the axes that cut it, model axes before data axes, and the dtype.
struct StorageKey {
  AxisList axes;
  ir::DType dtype = ir::DType::f32;
  bool operator==(const StorageKey&) const = default;
};
StorageKey key_of(const StateEntry& entry);
std::string to_string(const StorageKey& key);  // "tp,dp_shard/bf16", "none/f32"

// What a rank has of a tensor, without padding.
struct Box {
  std::vector<Chunk> dims;  // ranges of the global shape
  Chunk flat;  // elements of that box in row-major order: all of them, but where a cut of a flat buffer goes through it
  // Where each of several blocks of a dimension is cut: the global shape with blocks as a dimension of their own, whose ranges dims are,
  // [3, D, D] of [3 D, D]; empty: they are of the global shape. Elements have the same row-major order in both.
  std::vector<int64_t> block_shape = {};
  bool operator==(const Box&) const = default;
};
//   rank: of the layout's mesh
Box box_of(const StorageLayout& layout, const StateEntry& entry, int64_t rank);
//   buffer: the entry that `member` is one of (members_of)
Box box_of(const StorageLayout& layout, const StateEntry& buffer, const FlatMember& member, int64_t rank);

// Elements of the largest part that a rank has: what graphs say of the shape, padding included.
int64_t largest_part(const StorageLayout& layout, const StateEntry& entry);

// Bytes from a region's begin to the end of the last entry in it.
int64_t end_of(const StorageLayout& layout, Region region);

// Shapes of whole parameters, by name: a flat buffer of the graph that passes leave no longer says those of its members.
using GlobalShapes = std::map<std::string, std::vector<int64_t>>;
//   graph: of one rank, before the pass bucket
GlobalShapes global_shapes(const ir::Graph& graph);

// Appends state of the graph that the layout has not, at the plan's addresses.
//   plan:   of the graph, made with this layout (MemoryOptions::layout)
//   shapes: of members of flat buffers; one that is not there is taken for a vector
void append_state(StorageLayout& layout, const ir::Graph& graph, const MemoryPlan& plan,
                  const GlobalShapes& shapes = {});

// "" or what is wrong: a name twice, an axis that the mesh has not or that cuts twice, parts that do not make the whole, members that
// overlap, an entry that is too small for a part, lies over another one or in neither of its regions.
std::string check_layout(const StorageLayout& layout);

// A line per entry and, indented, per member; parts are listed only where they do not follow torch.chunk's rule.
//   storage_layout version=1 hash=9beb10837c4d2a10 entries=2
//   mesh [tp=2, dp_shard=2]
//   entry optimizer.step kind=counter key=none/f32 shape=[] region=state offset=0 bytes=256
//   entry layers.0.flat kind=parameter key=tp,dp_shard/f32 shape=[64] cut.0=dp_shard region=window offset=0 bytes=4096
//     member layers.0.w shape=[20, 5] cut.0=tp:12,8 offset=0
// print(parse_storage_layout(text)) == text.
std::string print(const StorageLayout& layout);

// throws: UserError naming line, expected and got: for another version, a hash that is not that of the lines, or what check_layout finds
StorageLayout parse_storage_layout(std::string_view text, const std::string& file_name = "");

// FNV-1a over the lines below the first, with the first `entries` of them: a layout that has grown still says what it was.
uint64_t hash(const StorageLayout& layout, size_t entries);
inline uint64_t hash(const StorageLayout& layout) { return hash(layout, layout.entries.size()); }

}  // namespace sfsdp::plan

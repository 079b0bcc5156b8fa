// SPDX-License-Identifier: BSD-3-Clause
// Where each parameter lies in which bucket: decided once per run; every graph on that state is compiled against it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::passes {

// A flat buffer, cut into equal shards. Sizes and offsets in elements.
struct BucketLayout {
  std::string name;  // of the param op: "layers.3.flat"
  std::vector<std::string> members;
  std::vector<int64_t> offsets, numels;  // of the members
  int64_t whole = 0;                     // with padding
  int64_t shard = 0;                     // a rank's; = whole where it is replicated
  // The unit's schedule (schedule_attrs.h), which holds for every batch shape.
  std::map<std::string, ir::Attr> schedule = {};
  bool operator==(const BucketLayout&) const = default;
};

using StorageLayout = std::vector<BucketLayout>;

// What the pass bucket has decided: of all params with members=.
StorageLayout storage_layout_of(const ir::Graph& graph);

// A line per bucket and, indented, per member: what must be equal for two programs to run on the same state.
//   layout 9beb10837c4d2a10: 2 buckets
//   bucket layers.0.flat whole=1024 shard=512
//     layers.0.w.weight offset=0 numel=600
std::string print(const StorageLayout& layout);
// Of the lines behind the first.
uint64_t hash(const StorageLayout& layout);

// Writes the schedules on the members' params, where wrap would.
void write_schedules(ir::Graph& graph, const StorageLayout& layout);

}  // namespace sfsdp::passes

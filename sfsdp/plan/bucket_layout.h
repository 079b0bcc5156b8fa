// SPDX-License-Identifier: BSD-3-Clause
// Where each parameter lies in which bucket, as the passes decide it: once per run; every graph on that state is compiled
// against it. Where buckets and all other state lie in memory is storage_layout.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::plan {

// A flat buffer, cut into equal shards. Sizes and offsets in elements.
struct BucketLayout {
  std::string name;  // of the param op: "layers.3.flat"
  std::vector<std::string> members;
  std::vector<int64_t> offsets, numels;  // of the members
  int64_t whole = 0;                     // with padding
  int64_t shard = 0;                     // a rank's; = whole where it is replicated
  // What its unit's params say of it (unit_attrs), which holds for every batch shape.
  ir::Attrs schedule = {};
  bool operator==(const BucketLayout&) const = default;
};

using BucketLayouts = std::vector<BucketLayout>;

// What a unit's params say of it beside its name: why it is one, what stays gathered, its schedule.
ir::Attrs unit_attrs(const ir::Op& param);

// What the pass bucket has decided: of all params with members=.
BucketLayouts bucket_layouts_of(const ir::Graph& graph);

// A line per bucket and, indented, per member.
//   bucket layers.0.flat whole=1024 shard=512
//     layers.0.w.weight offset=0 numel=600
std::string print(const BucketLayouts& buckets);

// Writes them on the members' params, where choosing units would.
void write_unit_attrs(ir::Graph& graph, const BucketLayouts& buckets);

}  // namespace sfsdp::plan

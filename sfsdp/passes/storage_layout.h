// SPDX-License-Identifier: BSD-3-Clause
// Where each parameter lies in which bucket: decided once per run; every graph on that state is compiled against it.
#pragma once

#include <cstdint>
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
  bool operator==(const BucketLayout&) const = default;
};

using StorageLayout = std::vector<BucketLayout>;

// What the pass bucket has decided: of all params with members=.
StorageLayout storage_layout_of(const ir::Graph& graph);

}  // namespace sfsdp::passes

// SPDX-License-Identifier: BSD-3-Clause
// What:   gives each weight that holds several blocks side by side in the dimension that is cut (q, k and v; gate and up) a dimension for
//         its blocks: of [3 D, D] becomes [3, D, D], cut in dimension 1.
// Why:    a rank's part of each block is a box of that, as of any other weight. Elements are in the same row-major order, so initial
//         values, checkpoints and folders need the other shape alone.
// Leaves: a view of the captured shape before each op that reads such a weight, and one of its gradient the other way round.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sfsdp/ir/graph.h"
#include "sfsdp/parallel/tensor_parallel.h"

namespace sfsdp::parallel {

// On the whole's sizes, before partition.
//   cuts:    of parameters, by name (find_cuts)
//   returns: which dimension of each is cut now
std::map<std::string, int64_t> separate_blocks(ir::Graph& graph, const std::map<std::string, Shard>& cuts);

}  // namespace sfsdp::parallel

// SPDX-License-Identifier: BSD-3-Clause
// The user's options of the axis ep, which cuts the batch and the experts of mixtures: each of its ranks has some samples, and some
// experts, which compute the tokens of all ranks that chose them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp {

struct ExpertParallelOptions {
  // Parameters whose dimension 0 is the experts, or modules of such parameters, by path (names in tensor_parallel.h).
  std::vector<std::string> experts = {"*.experts"};
};

namespace parallel {

// The parameters of experts, by name: dimension 0 of each.
//   throws: UserError where no parameter is one, or the ranks do not divide the experts
std::map<std::string, int64_t> find_experts(const ir::Graph& graph, const ExpertParallelOptions& options,
                                            int64_t ranks);

}  // namespace parallel
}  // namespace sfsdp

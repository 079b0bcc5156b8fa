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

// How a token comes to the ranks whose experts it chose, and back.
enum class DispatchMethod : uint8_t {
  Auto,  // whichever sends fewer rows, where all experts are chosen alike: an exchange where a token has fewer experts than ep ranks
  Gather,    // all ranks have all tokens and take those that are theirs; what their experts give is added up over ep
  Exchange,  // each rank is sent the rows of its experts alone (all_to_all_v), and sends them back
};

struct ExpertParallelOptions {
  // Parameters whose dimension 0 is the experts, or modules of such parameters, by path (names in tensor_parallel.h).
  std::vector<std::string> experts = {"*.experts"};
  DispatchMethod dispatch = DispatchMethod::Auto;
  // Rows that a rank's experts have room for at once, in even shares: 1.25 is a quarter more than if all experts were chosen alike. Where a
  // rank has more, all ranks make further rounds; nothing is dropped. Rows are then exchanged. 0: room for all rows on one rank.
  double capacity = 0;
};

namespace parallel {

// The parameters of experts, by name: dimension 0 of each.
//   throws: UserError where no parameter is one, or the ranks do not divide the experts
std::map<std::string, int64_t> find_experts(const ir::Graph& graph, const ExpertParallelOptions& options,
                                            int64_t ranks);

// Experts of the smallest mixture; 0: no parameter is one.
int64_t count_experts(const ir::Graph& graph, const ExpertParallelOptions& options);

}  // namespace parallel
}  // namespace sfsdp

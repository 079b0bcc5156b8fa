// SPDX-License-Identifier: BSD-3-Clause
// Ops that draw random numbers.
#pragma once

#include <utility>
#include <vector>

#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

// What an op draws depends on its module path and stream=, besides what is the same for all ops of a step. Backward may draw what
// forward has drawn again.
//   returns: each op that draws what another one draws, and what is wrong with it
std::vector<std::pair<const Op*, Diagnostic>> check_draws(const Graph& graph);

}  // namespace sfsdp::ir

// SPDX-License-Identifier: BSD-3-Clause
// Ops that draw random numbers.
#pragma once

#include <utility>
#include <vector>

#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

// What an op draws depends on its module path and stream=, besides what is the same for all ops of a step. Backward may draw
// again what forward has drawn. Either all ops of LibTorch's that draw have stream=, or none has: then its generator draws, in
// the order of calls.
//   returns: each op that draws what another one draws, or has no stream= beside others, and what is wrong with it
std::vector<std::pair<const Op*, Diagnostic>> check_draws(const Graph& graph);

}  // namespace sfsdp::ir

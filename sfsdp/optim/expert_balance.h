// SPDX-License-Identifier: BSD-3-Clause
// Balances experts without a loss: the bias by which a mixture chooses experts rises where they had fewer tokens than the mean, and
// falls where they had more. Source: arXiv:2408.15664; TorchTitan's centring of a step's changes.
#pragma once

#include <string>

#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/parallel/data_parallel.h"

namespace sfsdp {

// Which buffers: a module has both under these names.
struct ExpertBalance {
  double rate = 0;                           // by which a bias moves in a step; 0: none does
  std::string counts = "tokens_per_expert";  // i64[X]: forward adds to it how many tokens each expert had
  std::string bias = "expert_bias";          // floating [X]
};

namespace step {

// For each such module: n = tokens of each expert in the step, over micro-batches and data ranks;
//   d = rate sign(mean(n) - n);  bias = bias + d - mean(d)
// All of them in one all_reduce. The counts are the step's own: what the buffer holds stays as it is.
//   graph:  that data_parallel has made a rank's own
//   guard:  where it is not 0, no bias moves
//   throws: UserError for counts that forward does not add to, or without a bias beside them
void append_expert_balance(ir::Graph& graph, ir::Builder& build, const Strategy& strategy, const ExpertBalance& balance,
                           ir::Value* guard);

}  // namespace step
}  // namespace sfsdp

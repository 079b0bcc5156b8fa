// SPDX-License-Identifier: BSD-3-Clause
// Runs a local-view graph on every rank of its mesh, op by op, all ranks in lockstep: what a graph means. What stands above
// the sections runs once, then fwd, loss and bwd for each micro-batch, then clip and opt.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/ir/by_rank.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/testing/interp/array.h"
#include "sfsdp/testing/interp/kernels.h"

namespace sfsdp::ir::interp {

// What inputs, params, states (by attribute `name`) and constants ("constant.<index>") hold on one rank. An input of
// micro-batch 1 and those after it goes by input_key.
using Inputs = std::map<std::string, Array>;

std::string input_key(const std::string& name, int64_t micro_batch);  // "x", "x@1", "x@2"

enum class Rounding {
  PerOp,  // every result is rounded to its dtype, as on a machine
  None,   // double throughout: what is left is the order of sums
};

// What computes an op that has no kernel here, such as LibTorch's own: operands as the op lists them, nullptr where one is
// absent, to one array per result.
using OtherKernels = std::function<std::vector<Array>(const Op&, std::span<const Array* const>)>;

struct RunOptions {
  Rounding rounding = Rounding::PerOp;
  HostNumbers host = {};  // whose micro_batch is set as the step goes on
  OtherKernels other = nullptr;
};

struct RankResult {
  std::vector<Array> outputs;            // as in graph.outputs
  std::map<std::string, Array> carried;  // by the name of the param or state: what the next step starts from
};

struct RunResult {
  std::vector<RankResult> ranks;
  double largest = 0;   // absolute value of any number computed, to derive error bounds from
  int64_t numbers = 0;  // computed in all
};

// One step. Outputs are those of the last micro-batch. throws: UserError for an opcode without a kernel, a missing input, a wrong shape
RunResult run(const Graph& graph, const std::vector<Inputs>& inputs, const RunOptions& options = {});

// The op as a rank runs it (ir/by_rank.h), and its operands with the rows that are there; a count of them, the last one, is taken
// away. throws: UserError for a count beyond what the types have
RankOp rank_op(const Graph& graph, const Op& op, int64_t rank, std::vector<Array>& operands);

// Made-up inputs, others for each micro-batch: ranks hold the same values except along the axes that a type names (split,
// own, partial).
std::vector<Inputs> seeded_inputs(const Graph& graph, uint64_t seed);

}  // namespace sfsdp::ir::interp

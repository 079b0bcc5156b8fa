// SPDX-License-Identifier: BSD-3-Clause
// What ranks of the axis cp exchange for each attention (RotateMethod::Auto), by simulated time: each attention is taken out of the step
// with its backward, cut over cp in each form that is legal, and run on the machine that costs are counted on. Like attentions are
// simulated once.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/parallel/data_parallel.h"
#include "sfsdp/passes/pipeline.h"

namespace sfsdp::step {

struct AttentionForm {
  RotateMethod method;
  std::string refused;  // why it is not legal, as "is not causal"; "": it is
  double seconds = 0;   // of attention alone, forward and backward, with all that is sent for it and what is waited for
};

struct AttentionChoice {
  std::string path;  // of its module
  std::vector<std::string>
      results;  // names, as ContextParallelOptions::methods has them: forward's, backward's if there is one
  std::vector<AttentionForm> forms;               // AllGather, AllToAll, Ring
  RotateMethod chosen = RotateMethod::AllGather;  // the fastest that is legal; of equal ones the first
};

// All attention whose queries cp cuts, in the graph's order. It depends on the sizes of cp and of the axes within it, and on no other
// axis, so that all meshes of a search have the same program.
//   graph:   as captured
//   options: of the step; what is computed again in backward gathers again
//   throws:  UserError as parallel::apply_model_parallel does of the form AllGather
std::vector<AttentionChoice> choose_attention(const ir::Graph& graph, const Strategy& strategy,
                                              const passes::PipelineOptions& options, const cost::Machine& machine);

// Cuts a step over model axes, with each attention in the form that is chosen. Where all gather, that is the step on which the choices
// were made, which is not cut again.
//   graph: as captured; becomes what parallel::apply_model_parallel leaves with these forms asked for by name
void apply_chosen(ir::Graph& graph, const Strategy& strategy, const passes::PipelineOptions& options,
                  const cost::Machine& machine);

// The strategy with ContextParallelOptions::methods as they were chosen.
Strategy with_methods(Strategy strategy, const std::vector<AttentionChoice>& choices);

}  // namespace sfsdp::step

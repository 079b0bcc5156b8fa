// SPDX-License-Identifier: BSD-3-Clause
// From a captured step to the program of one rank: data parallelism, clipping and optimizer, passes, checks. Torch-free,
// so that many configurations of one capture are compiled without another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/compile/choose_attention.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/optim/optimizer.h"
#include "sfsdp/parallel/data_parallel.h"
#include "sfsdp/passes/pipeline.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/tune/product_sites.h"
#include "sfsdp/tune/tune.h"

namespace sfsdp::step {

// What a step is made of beside its capture and its strategy.
struct StepOptions {
  Optimizer optimizer;
  double max_norm = 0;  // as CompileOptions have these
  bool skip_non_finite = true;
  int64_t micro_batches = 1;
  ExpertBalance balance = {};
  passes::PipelineOptions pipeline = {};  // storage options are the strategy's: pipeline_of
  tune::TuneOptions tune = {};
  cost::Target target = cost::cpu_target();
  // Whether asynchronous tensor parallelism that takes no site is an error; without, batches of other shapes may take none.
  bool needs_product_sites = true;
};

// The pipeline with what the strategy says of storage and the target of products; those are joined where kernels are
// formed across modules.
passes::PipelineOptions pipeline_of(const Strategy& strategy, passes::PipelineOptions options,
                                    const cost::Target& target);

// Which products of a graph that is partitioned are computed part by part; none where the strategy asks for it nowhere.
//   throws: UserError where tp is 1, rows are not cut, or no machine is named and one is needed
std::vector<tune::ProductSiteChoice> product_sites(const ir::Graph& graph, const Strategy& strategy,
                                                   const tune::TuneOptions& tune);

// What each attention exchanges over cp, whatever the strategy asks for, with the times of all forms (choose_attention.h); none where cp
// is 1 or StepOptions::tune names no machine.
//   graph: as captured
std::vector<AttentionChoice> attention_choices(const ir::Graph& graph, const Strategy& strategy,
                                               const StepOptions& options);

// Makes a captured graph a rank's own: its share of the mean, data parallelism; then norm, clipping and update, or for a
// graph without backward the loss alone.
//   graph: as capture::capture_step leaves it. Outputs: a mean, or a sum and its count
//   half_precision: gradients are made in bf16 or f16
//   returns: the optimizer's state, none without backward
std::vector<OptimizerState> place_step(ir::Graph& graph, const Strategy& strategy, const StepOptions& options,
                                       bool training, bool half_precision);

// The plan of a graph that has been through the pipeline, proved sound.
//   layout: of the run's state; what the graph reads of it beyond is appended, an empty one is decided here
//   shapes: plan::global_shapes of the graph before the pipeline
//   throws: InternalError with all that plan::verify_plan and check_state_addresses find
plan::StepPlan plan_step(ir::Graph graph, const cost::Target& target, plan::StorageLayout& layout,
                         const plan::GlobalShapes& shapes);

// All of the above on one training graph.
//   throws: UserError as the parts do
plan::StepPlan complete_step(ir::Graph graph, const Strategy& strategy, const StepOptions& options,
                             bool half_precision);

}  // namespace sfsdp::step

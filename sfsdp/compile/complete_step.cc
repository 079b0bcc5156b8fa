// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/compile/complete_step.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/parallel/model_parallel.h"
#include "sfsdp/passes/overlap/pipeline_products.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/verify/state_addresses.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/tune/remat_share.h"

namespace sfsdp::step {
namespace {

// With what backward begins: the gradient of the loss.
void set_seed(ir::Graph& graph, double seed) {
  for (const auto& op : graph.ops())
    if (op->is("full") && op->section == ir::Section::Bwd && op->result()->name() == "seed") op->attrs["value"] = seed;
}

// Whether attention may be chosen by cost.
bool has_choice(const Strategy& strategy, const tune::TuneOptions& tune) {
  return strategy.axis_size("cp") > 1 && !tune.machine.empty();
}

// Takes the sites that are chosen.
void pipeline_products(ir::Graph& graph, const Strategy& strategy, const StepOptions& options, bool training) {
  if (strategy.tensor.options.async_products == AsyncProducts::Off) return;
  const std::vector<tune::ProductSiteChoice> sites = product_sites(graph, strategy, options.tune);
  const std::string names = tune::taken_names(sites);
  if (names.empty() && training && options.needs_product_sites)
    throw UserError(concat("TensorParallelOptions::async_products: ", tune::why_none_taken(sites),
                           "\n  expected one site at least that gains; set AsyncProducts::Off"));
  if (names.empty()) return;
  const std::array calls = {
      passes::make_call("pipeline_products", passes::PipelineProductsOptions{.axis = "tp", .sites = names})};
  passes::run_passes(graph, calls, {.checks = options.pipeline.checks});
}

}  // namespace

std::vector<tune::ProductSiteChoice> product_sites(const ir::Graph& graph, const Strategy& strategy,
                                                   const tune::TuneOptions& tune) {
  const TensorParallelOptions& tensor = strategy.tensor.options;
  if (tensor.async_products == AsyncProducts::Off) return {};
  const auto refuse = [](const std::string& why, const char* expected) {
    throw UserError(concat("TensorParallelOptions::async_products ", why, "\n  expected ", expected));
  };
  if (strategy.axis_size("tp") == 1)
    refuse("with mesh axis tp = 1: nothing is sent between products", "tp above 1, or AsyncProducts::Off");
  if (!tensor.sequence_parallel)
    refuse(
        "without TensorParallelOptions::sequence_parallel: sums of products are whole on every rank, so that no rows "
        "are gathered",
        "TensorParallelOptions::sequence_parallel, or AsyncProducts::Off");
  std::optional<cost::Machine> machine;
  if (tensor.async_products == AsyncProducts::WhereFaster) {
    if (tune.machine.empty())
      refuse("has no machine to count costs on",
             "a machine by name or its file in TuneOptions::machine, such as dgx_h100");
    machine = cost::load_machine(tune.machine, tune.attention);
  }
  return tune::choose_product_sites(graph, "tp", machine);
}

std::vector<AttentionChoice> attention_choices(const ir::Graph& graph, const Strategy& strategy,
                                               const StepOptions& options) {
  if (!has_choice(strategy, options.tune)) return {};
  return choose_attention(graph, strategy, options.pipeline,
                          cost::load_machine(options.tune.machine, options.tune.attention));
}

passes::PipelineOptions pipeline_of(const Strategy& strategy, passes::PipelineOptions options,
                                    const cost::Target& target) {
  options.flat = strategy.options.layout == ParameterLayout::Flat;
  options.wrap.units = strategy.options.units;
  const ZeroPlacements zero = zero_placements(strategy.options.zero_stage);
  // Weights side by side are one matrix of the whole's rows, or of a rank's, but not of both.
  options.join_products |= target.joins_products && options.fuse.scope == passes::FuseScope::All;
  options.join_products &= strategy.model_axes().empty();
  options.gather_once = zero.parameters != zero.state;
  options.cover_exchanges = strategy.axis_size("ep") > 1;
  const RotateMethod method = strategy.context.rotate_method;
  const bool has_ring = strategy.axis_size("cp") > 1 && (method == RotateMethod::Ring || method == RotateMethod::Auto);
  options.cover_permutes = has_ring || strategy.tensor.options.async_products != AsyncProducts::Off;
  options.pack_all_reduces = !strategy.tensor_axes().empty();
  options.further_rounds = options.cover_exchanges && strategy.expert.capacity > 0;
  return options;
}

std::vector<OptimizerState> place_step(ir::Graph& graph, const Strategy& strategy, const StepOptions& options,
                                       bool training, bool half_precision) {
  // A mean is shared out here, once; a (sum, count) is divided by the global count in the clip section.
  parallel::MeanShare share;
  if (graph.outputs.size() == 1)
    share = parallel::share_of_mean(strategy.data_ranks() * options.micro_batches, half_precision);
  set_seed(graph, share.seed);
  if (training) graph.micro_batches = options.micro_batches;
  if (strategy.context.rotate_method == RotateMethod::Auto && has_choice(strategy, options.tune))
    apply_chosen(graph, strategy, options.pipeline, cost::load_machine(options.tune.machine, options.tune.attention));
  else
    parallel::apply_model_parallel(graph, strategy, options.pipeline.canonical);
  pipeline_products(graph, strategy, options, training);
  parallel::apply_data_parallel(graph, strategy, {share.rest});
  if (training)
    return append_update(graph, options.optimizer, strategy,
                         {options.max_norm, options.skip_non_finite, options.balance});
  append_loss(graph, strategy);
  return {};
}

plan::StepPlan plan_step(ir::Graph graph, const cost::Target& target, plan::StorageLayout& layout,
                         const plan::GlobalShapes& shapes) {
  plan::StorageLayout extended = layout;
  plan::StepPlan plan = plan::make_plan(std::move(graph), {.target = target}, extended, shapes);
  std::vector<std::string> wrong = plan::verify_plan(plan);
  if (const std::string error = plan::check_layout(extended); !error.empty()) wrong.push_back(error);
  std::ranges::move(plan::check_state_addresses(plan, extended), std::back_inserter(wrong));
  if (!wrong.empty()) throw InternalError("the compiled step is not sound: " + join(wrong, "\n"));
  layout = std::move(extended);
  return plan;
}

plan::StepPlan complete_step(ir::Graph graph, const Strategy& strategy, const StepOptions& options,
                             bool half_precision) {
  place_step(graph, strategy, options, true, half_precision);
  passes::PipelineOptions pipeline = pipeline_of(strategy, options.pipeline, options.target);
  std::optional<plan::BucketLayouts> buckets;
  const plan::GlobalShapes shapes = plan::global_shapes(graph);
  if (options.tune.choose_remat) pipeline.remat = tune::choose_remat(graph, pipeline, options.tune, buckets).options;
  tune::run_pipeline(graph, pipeline, options.tune, buckets);
  plan::StorageLayout layout;
  return plan_step(std::move(graph), options.target, layout, shapes);
}

}  // namespace sfsdp::step

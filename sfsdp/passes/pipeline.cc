// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/pipeline.h"

#include <algorithm>
#include <array>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/passes/predict_step.h"

namespace sfsdp::passes {
namespace {

// A pass that is not run for this step still marks a place for extra ones.
struct Stage {
  PassCall call;
  bool runs = true;
  std::string follows = {};  // of extra passes: the anchor that they stand behind
};

std::vector<Stage> own_stages(const PipelineOptions& o, const std::optional<StorageLayout>& layout) {
  return {
      // Logits for a part of the tokens at a time, where nothing reads them that is read by nobody.
      {make_call("dead_code"), o.loss_chunks > 1},
      {make_call("chunk_loss", {{"chunks", std::max<int64_t>(o.loss_chunks, 1)}}), o.loss_chunks > 1},
      // Views of views, which eager makes on its way.
      {make_call("fold_views")},
      // What is computed twice, such as the transpose of a weight.
      {make_call("merge_duplicates")},
      // Results that nobody reads, such as statistics of a kernel's that backward does not need.
      {make_call("dead_code")},
      // Shards that a model would cast once gathered.
      {make_call("hoist_casts")},
      // What backward computes again instead of reading it.
      {make_call("remat", {{"mode", o.remat.mode},
                           {"every", o.remat.every},
                           {"mm_again", o.remat.mm_again},
                           {"memory_budget", o.remat.memory_budget}})},
      // Gathers for what is computed again and those that backward had (bucket merges them by itself).
      {make_call("merge_duplicates"), !o.flat && o.remat.mode != "none"},
      // Which parameters form a unit.
      {make_call("wrap", {{"units", o.units},
                          {"mode", o.wrap},
                          {"machine", o.machine},
                          {"memory_gib", o.memory_gib},
                          {"micro_batches", o.micro_batches},
                          {"keep", o.choose_reshard}}),
       !layout},
      // Which units backward finds gathered still.
      {make_call("reshard", {{"keep_last", o.keep_last && !o.choose_reshard && !layout}})},
      // One flat shard, gather, reduction and update per unit.
      {make_call("bucket"), o.flat},
      // Parameters that stay whole are gathered behind their update, not where they are read.
      {make_call("keep_whole"), o.keep_whole},
      // Where each parameter is stored by itself: copied into one gather and one reduction per unit.
      {make_call("copy_buckets"), !o.flat},
      // Start and wait of each collective, to be moved apart.
      {make_call("split_collectives")},
      // Gathers start under the compute of earlier units.
      {make_call("prefetch_gathers", {{"depth", o.prefetch_depth},
                                      {"forward", o.prefetch_forward},
                                      {"backward", o.prefetch_backward},
                                      {"max_bytes", o.prefetch_bytes}})},
      // Reductions are waited for at the next one.
      {make_call("sink_waits", {{"depth", o.sink_depth}, {"next", o.sink_next}})},
      // What is reduced once per step starts under backward; updates follow in the order of the reductions.
      {make_call("pipeline_reductions", {{"micro_batches", o.micro_batches}})},
  };
}

void insert(std::vector<Stage>& stages, const ExtraPass& extra) {
  const auto named = [&](const Stage& stage) { return stage.call.info->name == extra.anchor; };
  auto at = std::ranges::find_if(stages, named);
  if (at == stages.end()) {
    std::vector<std::string> names;
    for (const Stage& stage : stages) names.push_back(stage.call.info->name);
    const std::string near = ir::nearest_name(extra.anchor, names);
    throw UserError(concat("error: extra pass ", extra.name, " stands ",
                           extra.place == ExtraPass::Place::Before ? "before" : "after", " '", extra.anchor,
                           "', which is no pass of the pipeline\n  ",
                           near.empty() ? "expected one of: " + join(names, " ") : concat("did you mean ", near, '?')));
  }
  Stage stage{make_call(extra.name, extra.options)};
  if (extra.place == ExtraPass::Place::After) {
    stage.follows = extra.anchor;
    do ++at;  // behind the anchor and those that already follow it: the list's order is kept
    while (at != stages.end() && at->follows == extra.anchor);
  }
  stages.insert(at, std::move(stage));
}

bool has_backward(const ir::Graph& graph) {
  return std::ranges::any_of(graph.ops(), [](const auto& op) { return op->section == ir::Section::Bwd; });
}

}  // namespace

void set_order(PipelineOptions& options, const std::string& name) {
  struct Order {
    const char *name, *forward, *backward, *reduction;
  };
  constexpr std::array<Order, 3> kOrders = {{{"simplefsdp", "before", "after", "before"},
                                             {"autoparallel", "after", "after", "before"},
                                             {"graphtrainer", "before", "before", "after"}}};
  const auto* order = std::ranges::find(kOrders, name, &Order::name);
  if (order == kOrders.end())
    throw UserError(concat("order = ", name, "\n  expected simplefsdp, autoparallel or graphtrainer"));
  options.prefetch_forward = order->forward;
  options.prefetch_backward = order->backward;
  options.sink_next = order->reduction;
}

std::vector<std::string> overlap_passes() {
  return {"split_collectives", "prefetch_gathers", "sink_waits", "pipeline_reductions"};
}

std::vector<PassCall> pipeline_passes(const PipelineOptions& options, const std::optional<StorageLayout>& layout) {
  std::vector<Stage> stages = own_stages(options, layout);
  for (const ExtraPass& extra : options.extra) insert(stages, extra);
  std::vector<PassCall> calls;
  for (Stage& stage : stages)
    if (stage.runs) calls.push_back(std::move(stage.call));
  return without(std::move(calls), options.disable);
}

std::vector<PassReport> run_pipeline(ir::Graph& graph, const PipelineOptions& options,
                                     std::optional<StorageLayout>& layout) {
  if (options.keep_whole && options.wrap != "manual")
    throw UserError(concat("wrap = ", options.wrap, " at ZeRO stage 1 or 2",
                           "\n  expected manual: its costs are those of gathers where parameters are read, and here"
                           " they are whole; set fsdp_wrap = manual, or zero_stage = 3"));
  if (!options.flat && options.wrap != "manual")
    throw UserError(concat("wrap = ", options.wrap, " with layout = Dim0",
                           "\n  expected manual: its costs are those of units that are stored flat; set"
                           " fsdp_wrap = manual, or fsdp_layout = flat"));
  const std::vector<PassCall> calls = pipeline_passes(options, layout);
  if (layout) write_schedules(graph, *layout);
  RunOptions run{.layout = layout ? &*layout : nullptr, .observer = options.observer, .checks = options.checks};
  if (options.predict) {
    if (options.machine.empty())
      throw UserError(
          "passes are to be predicted, and there is no machine\n  expected a machine file, such as"
          " machines/dgx_h100.toml, in parallelism.fsdp_machine");
    run.predict = [machine = cost::load_machine(options.machine), count = options.micro_batches](const ir::Graph& g) {
      return predict_step(g, machine, count);
    };
  }
  auto reports = run_passes(graph, calls, run);
  const auto chunked = std::ranges::find(reports, "chunk_loss", &PassReport::name);
  if (chunked != reports.end() && !chunked->changed && has_backward(graph))
    throw UserError(concat("loss_chunks = ", options.loss_chunks, ": no loss of this model can be cut into chunks",
                           "\n  expected a linear layer without bias, then cross entropy over at least that many"
                           " tokens, and logits that nothing else reads; set loss_chunks = 1"));
  const bool flat = std::ranges::any_of(calls, [](const PassCall& call) { return call.info->name == "bucket"; });
  if (flat && !layout) layout = storage_layout_of(graph);
  return reports;
}

}  // namespace sfsdp::passes

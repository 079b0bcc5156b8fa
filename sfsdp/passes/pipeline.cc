// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/pipeline.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/passes/memory/chunk_loss.h"

namespace sfsdp::passes {
namespace {

constexpr const char* kUnits = "wrap";  // where the pipeline's second half begins

// A pass that is not run for this step still marks a place for extra ones.
struct Stage {
  PassCall call;
  bool runs = true;
  std::string follows = {};  // of extra passes: the anchor that they stand after
};

std::vector<Stage> own_stages(const PipelineOptions& o, bool names_units, bool has_layout) {
  const bool chunks = o.loss_chunks > 1;
  ReshardOptions reshard = o.reshard;
  reshard.keep_last &= !has_layout;
  return {
      // Drop unread ops first: chunk_loss fires only where the loss is the logits' one reader.
      {make_call("dead_code"), chunks},
      {make_call("chunk_loss", ChunkLossOptions{.chunks = std::max<int64_t>(o.loss_chunks, 1)}), chunks},
      // What a model means by several ops, such as a norm, as one.
      {make_call("canonicalise", o.canonical)},
      // Views of views, which eager makes on its way.
      {make_call("fold_views")},
      // What is computed twice, such as the transpose of a weight.
      {make_call("merge_duplicates")},
      // Results that nobody reads, such as statistics of a kernel's that backward does not need.
      {make_call("dead_code")},
      // Shards that a model would cast once gathered.
      {make_call("hoist_casts")},
      // What backward computes again instead of reading it.
      {make_call("remat", o.remat)},
      // What forward made for backward alone, which now makes it itself.
      {make_call("dead_code"), o.remat.mode != RematMode::None},
      // Gathers for what is computed again and those that backward had (bucket merges them by itself).
      {make_call("merge_duplicates"), !o.flat && o.remat.mode != RematMode::None},
      // Which parameters form a unit.
      {make_call(kUnits, o.wrap), names_units},
      // Which units backward finds gathered still.
      {make_call("reshard", reshard)},
      // Which weights lie side by side, as one product reads them.
      {make_call("group_weights"), o.flat && o.join_products},
      // One flat shard, gather, reduction and update per unit.
      {make_call("bucket"), o.flat},
      // QKV, and gate and up, as one product each.
      {make_call("join_products"), o.flat && o.join_products},
      // Where each parameter is stored by itself: copied into one gather and one reduction per unit.
      {make_call("copy_buckets"), !o.flat},
      // Small gradients that ranks of tp add up: one sum of all of them.
      {make_call("pack_all_reduces"), o.pack_all_reduces},
      // Start and wait of each collective, to be moved apart.
      {make_call("split_collectives")},
      // What does not need tokens that travel to experts and back runs meanwhile.
      {make_call("cover_exchanges"), o.cover_exchanges},
      // Keys and values of the next rank, or rows of products, travel while attention or products of this one's are computed.
      {make_call("cover_permutes"), o.cover_permutes},
      // Parameters that forward and backward read whole are gathered once per step.
      {make_call("gather_once"), o.gather_once},
      // Gathers start under the compute of earlier units.
      {make_call("prefetch_gathers", o.prefetch)},
      // Reductions are waited for at the next one.
      {make_call("sink_waits", o.sink)},
      // What is reduced once per step starts under backward; updates follow in the order of the reductions.
      {make_call("early_all_reduces")},
      // What a step leaves lies where the next one reads it.
      {make_call("keep_in_place")},
      // Which ops one kernel computes.
      {make_call("fuse", o.fuse)},
      // What a kernel of backward makes on its way from what it reads is not kept for it.
      {make_call("remat_in_kernels"), o.fuse.scope == FuseScope::All},
      // Gradients are written where their reduction reads them.
      {make_call("write_in_buckets"), o.fuse.scope == FuseScope::All},
      // What computes products, attention and loss.
      {make_call("name_kernels", o.kernels), o.kernels.is_any()},
      // What the rows are computed in for which the first round has no room.
      {make_call("further_rounds"), o.further_rounds},
  };
}

void insert(std::vector<Stage>& stages, const ExtraPass& extra) {
  const auto named = [&](const Stage& stage) { return stage.call.info->name == extra.anchor; };
  auto at = std::ranges::find_if(stages, named);
  if (at == stages.end()) {
    std::vector<std::string> names;
    for (const Stage& stage : stages) names.push_back(stage.call.info->name);
    const std::string near = nearest(extra.anchor, names);
    throw UserError(concat("extra pass ", extra.name, " stands ",
                           extra.place == ExtraPass::Place::Before ? "before" : "after", " '", extra.anchor,
                           "', which is no pass of the pipeline\n  ",
                           near.empty() ? "expected one of: " + join(names, " ") : concat("did you mean ", near, '?')));
  }
  Stage stage{make_call(extra.name, extra.options)};
  if (extra.place == ExtraPass::Place::After) {
    stage.follows = extra.anchor;
    do ++at;  // after the anchor and those that already follow it: the list's order is kept
    while (at != stages.end() && at->follows == extra.anchor);
  }
  stages.insert(at, std::move(stage));
}

bool has_backward(const ir::Graph& graph) {
  return std::ranges::any_of(graph.ops(), [](const auto& op) { return op->section == ir::Section::Bwd; });
}

struct Halves {
  std::vector<PassCall> before, with_units;  // before units are formed; from there on
};

//   names_units: wrap is run
Halves make_halves(const PipelineOptions& options, bool names_units, bool has_layout) {
  std::vector<Stage> stages = own_stages(options, names_units, has_layout);
  for (const ExtraPass& extra : options.extra) insert(stages, extra);
  const auto units = std::ranges::find_if(stages, [](const Stage& stage) { return stage.call.info->name == kUnits; });
  std::vector<PassCall> calls;
  for (Stage& stage : stages)
    if (stage.runs) calls.push_back(stage.call);
  calls = without(std::move(calls), options.disable);  // of both halves: one may need a pass of the other
  const auto is_disabled = [&](const Stage& stage) {
    return std::ranges::any_of(options.disable,
                               [&](const std::string& name) { return trim(name) == stage.call.info->name; });
  };
  Halves halves;
  for (auto stage = stages.begin(); stage != stages.end(); ++stage)
    if (stage->runs && !is_disabled(*stage)) (stage < units ? halves.before : halves.with_units).push_back(stage->call);
  return halves;
}

RunOptions run_options(const PipelineOptions& options, const plan::BucketLayouts* layout) {
  return {.layout = layout, .observer = options.observer, .measure = options.measure, .checks = options.checks};
}

std::vector<PassReport> run_second_half(ir::Graph& graph, const PipelineOptions& options,
                                        const std::vector<PassCall>& calls,
                                        std::optional<plan::BucketLayouts>& layout) {
  RunOptions run = run_options(options, layout ? &*layout : nullptr);
  if (options.observer)
    run.observer = [&](const std::string& name, const ir::Graph& seen) {
      if (name != "start") options.observer(name, seen);
    };
  auto reports = run_passes(graph, calls, run);
  const bool flat = std::ranges::any_of(calls, [](const PassCall& call) { return call.info->name == "bucket"; });
  if (flat && !layout) layout = plan::bucket_layouts_of(graph);
  return reports;
}

}  // namespace

void set_order(PipelineOptions& options, const std::string& name) {
  struct Order {
    const char* name;
    Side forward, backward, reduction;
  };
  constexpr std::array<Order, 3> kOrders = {{{"simplefsdp", Side::Before, Side::After, Side::Before},
                                             {"autoparallel", Side::After, Side::After, Side::Before},
                                             {"graphtrainer", Side::Before, Side::Before, Side::After}}};
  const auto* order = std::ranges::find(kOrders, name, &Order::name);
  if (order == kOrders.end())
    throw UserError(concat("set_order: \"", name, "\"\n  expected simplefsdp, autoparallel or graphtrainer"));
  options.prefetch.forward = order->forward;
  options.prefetch.backward = order->backward;
  options.sink.next = order->reduction;
}

std::vector<std::string> overlap_passes() {
  return {"split_collectives", "cover_exchanges", "cover_permutes",   "gather_once",
          "prefetch_gathers",  "sink_waits",      "early_all_reduces"};
}

std::vector<PassCall> pipeline_passes(const PipelineOptions& options,
                                      const std::optional<plan::BucketLayouts>& layout) {
  Halves halves = make_halves(options, !layout, layout.has_value());
  std::ranges::move(halves.with_units, std::back_inserter(halves.before));
  return std::move(halves.before);
}

std::vector<PassReport> run_before_units(ir::Graph& graph, const PipelineOptions& options) {
  auto reports = run_passes(graph, make_halves(options, false, false).before, run_options(options, nullptr));
  const auto chunked = std::ranges::find(reports, "chunk_loss", &PassReport::name);
  if (chunked == reports.end() || chunked->changed || !has_backward(graph)) return reports;
  const std::string why = why_not_chunked(graph, options.loss_chunks);
  throw UserError(concat("PipelineOptions::loss_chunks = ", options.loss_chunks,
                         ": no loss of this model can be cut into chunks", why.empty() ? "" : ": ", why,
                         "\n  expected a linear layer without bias, then cross entropy over at least that many"
                         " tokens, and logits that nothing else reads; set PipelineOptions::loss_chunks = 1"));
}

std::vector<PassReport> run_with_units(ir::Graph& graph, const PipelineOptions& options,
                                       std::optional<plan::BucketLayouts>& layout) {
  const std::vector<PassCall> calls = make_halves(options, false, layout.has_value()).with_units;
  return run_second_half(graph, options, calls, layout);
}

std::vector<PassReport> run_pipeline(ir::Graph& graph, const PipelineOptions& options,
                                     std::optional<plan::BucketLayouts>& layout) {
  auto reports = run_before_units(graph, options);
  if (layout) plan::write_unit_attrs(graph, *layout);
  const std::vector<PassCall> calls = make_halves(options, !layout, layout.has_value()).with_units;
  std::ranges::move(run_second_half(graph, options, calls, layout), std::back_inserter(reports));
  return reports;
}

}  // namespace sfsdp::passes

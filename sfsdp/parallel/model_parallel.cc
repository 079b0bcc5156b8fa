// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/model_parallel.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <ranges>
#include <string>
#include <unordered_set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/model_axis.h"
#include "sfsdp/parallel/separate_blocks.h"
#include "sfsdp/passes/pass_manager.h"

namespace sfsdp::parallel {
namespace {

// Who looks for products beside collectives asks what else reads a value.
void drop_unread_views(ir::Graph& graph) {
  std::unordered_set<const ir::Value*> read(graph.outputs.begin(), graph.outputs.end());
  for (const ir::Carry& carry : graph.carries) read.insert(carry.next);
  std::vector<ir::Op*> unread;
  for (const auto& op : graph.ops() | std::views::reverse) {
    const bool is_view = ir::has_flag(*op, ir::kReshape) || ir::has_flag(*op, ir::kPermute);
    if (is_view && !read.contains(op->result()))
      unread.push_back(op.get());
    else
      read.insert(op->operands.begin(), op->operands.end());
  }
  graph.erase(unread);
}

// Ranks of ep have some experts each; over tp each of these may be cut within, not their number again. Asked before the ranks are, as
// no other degree would cure it.
void check_cut_once(const ir::Graph& graph, const Strategy& strategy) {
  const std::map<std::string, int64_t> experts = find_experts(graph, strategy.expert, strategy.axis_size("ep"));
  for (const auto& op : graph.ops()) {
    if (!op->is("param") || !experts.contains(op->attr<std::string>("name"))) continue;
    const auto& path = op->attr<std::string>("name");
    const auto rule = std::ranges::find_if(strategy.tensor.rules, [&](const TensorParallelRule& one) {
      return names(one.pattern, path) && one.cut.dim < std::ssize(op->result()->type().dims);
    });
    if (rule == strategy.tensor.rules.end() || rule->cut.dim != experts.at(path)) continue;
    throw UserError(concat("tensor_parallel: {\"", rule->pattern, "\", ", to_string(rule->cut), "} cuts dimension ",
                           rule->cut.dim, " of ", path, ", the experts, which ep = ", strategy.axis_size("ep"),
                           " cuts\n  expected a rule before it that cuts within each expert, such as {\"",
                           with_stars(path), "\", ", to_string(Shard(1)), "}, or a pattern that leaves them out"));
  }
}

// What is added up over a model axis is rounded once, after the sum: a gradient that is rounded to the parameter's dtype, of a weight that
// a model computes with in float32, would be summed for that in front of its reduction. That adds up in this dtype: it sums both at once.
void leave_rounding_to_reductions(ir::Graph& graph, const Strategy& strategy) {
  const std::optional<ir::DType> reduced = strategy.options.mixed_precision.reduce_dtype;
  const ir::Index index(graph);
  std::vector<ir::Op*> casts;
  for (const auto& op : graph.ops()) {
    if (!op->is("gradient")) continue;
    ir::Op* cast = op->operands[0]->producer();
    if (!cast->is("cast", "aten._to_copy") || index.readers(cast->result()).size() != 1) continue;
    const ir::Type& made = cast->operands[0]->type();
    if (made.dtype != reduced || !ir::is_half(cast->result()->type().dtype)) continue;
    op->operands[0] = cast->operands[0];
    op->result()->set_type(made);
    casts.push_back(cast);
  }
  graph.erase(casts);
}

PartitionReport cut_weights(ir::Graph& graph, const MeshAxis& axis, const TensorParallel& tensor) {
  const std::map<std::string, Shard> cuts = find_cuts(graph, tensor, axis.size);
  PartitionReport report = partition(graph, axis, separate_blocks(graph, cuts), tensor.options);
  report.cuts = cuts;
  return report;
}

}  // namespace

void name_ops(ir::Graph& graph, const passes::CanonicaliseOptions& canonical) {
  const std::array calls = {passes::make_call("canonicalise", canonical), passes::make_call("fold_views"),
                            passes::make_call("merge_duplicates")};
  passes::run_passes(graph, calls, {.checks = passes::Checks::RegisteredPasses});
}

std::vector<PartitionReport> apply_model_parallel(ir::Graph& graph, const Strategy& strategy,
                                                  const passes::CanonicaliseOptions& canonical) {
  if (!strategy.model_axes().empty()) name_ops(graph, canonical);
  return cut_named(graph, strategy);
}

std::vector<PartitionReport> cut_named(ir::Graph& graph, const Strategy& strategy) {
  const AxisList axes = strategy.model_axes();
  if (axes.empty()) return {};
  leave_rounding_to_reductions(graph, strategy);
  graph.mesh = strategy.mesh.axes();
  if (strategy.axis_size("ep") > 1 && strategy.axis_size("tp") > 1) check_cut_once(graph, strategy);
  std::vector<PartitionReport> reports;
  for (const std::string& axis : axes) {
    const int64_t ranks = strategy.mesh.size(axis), inner = strategy.axis_size("tp");
    if (is_expert_axis(axis)) {
      const ContextParallelOptions batch = {.load_balance = false, .sequence_dims = strategy.options.batch_dims};
      reports.push_back(partition(graph, {axis, ranks}, find_experts(graph, strategy.expert, ranks), {}, &batch, inner,
                                  strategy.expert));
    } else if (is_sequence_axis(axis))
      reports.push_back(partition(graph, {axis, ranks}, {}, {}, &strategy.context, inner));
    else
      reports.push_back(cut_weights(graph, {axis, ranks}, strategy.tensor));
  }
  if (strategy.tensor.options.async_products != AsyncProducts::Off) drop_unread_views(graph);
  return reports;
}

}  // namespace sfsdp::parallel

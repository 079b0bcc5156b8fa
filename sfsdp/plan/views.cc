// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/views.h"

#include <map>
#include <optional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/attrs.h"
#include "sfsdp/ir/by_rank.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/ir/view_geometry.h"

namespace sfsdp::plan {
namespace {

using ir::Graph;
using Geometries = ir::ValueTable<std::optional<ir::Geometry>>;

// By storage and view, on the rank at these coordinates; nullopt: no strides say where its elements lie.
Geometries geometries_of(const Graph& graph, const ir::Coordinates& at = {}) {
  Geometries known(graph);
  for (const auto& op : graph.ops()) {
    const bool by_rank = ir::is_by_rank(*op) && ir::aliased_operand(*op) >= 0;
    const std::optional<ir::RankOp> local =
        by_rank ? std::optional<ir::RankOp>(std::in_place, graph, *op, at) : std::nullopt;
    for (const auto& result : op->results()) {
      if (ir::aliased_operand(*op) < 0)
        known[result.get()] = ir::Geometry{ir::strides_of(result->type()), 0};
      else if (const auto& below = known[op->operands[0]])
        known[result.get()] = ir::view_geometry(local ? local->op() : *op, result->result_index(), *below);
    }
  }
  return known;
}

std::vector<View> begins(const Graph& graph, const Geometries& known) {
  std::map<std::string, Geometries> beside;  // one step along each axis from the first rank; begins are affine
  for (const auto& op : graph.ops())
    if (ir::aliased_operand(*op) >= 0)
      for (const std::string& axis : ir::coordinate_axes(*op))
        if (!beside.contains(axis)) beside.emplace(axis, geometries_of(graph, {{axis, 1}}));
  std::vector<View> views;
  for (const auto& op : graph.ops()) {
    if (ir::aliased_operand(*op) < 0) continue;
    for (const auto& result : op->results()) {
      const auto& geometry = known[result.get()];
      if (!geometry) continue;
      const int64_t bytes = ir::size_in_bytes(result->type().dtype);
      View view{result.get(), geometry->offset * bytes};
      for (const auto& [axis, next] : beside)
        if (const int64_t step = (next[result.get()]->offset - geometry->offset) * bytes; step != 0)
          view.steps.emplace_back(axis, step);
      if (view.offset != 0 || !view.steps.empty()) views.push_back(std::move(view));
    }
  }
  return views;
}

}  // namespace

std::string text_of(const View& view) {
  std::string text = concat('%', view.value->name(), " at +", view.offset);
  for (const auto& [axis, step] : view.steps) text += concat(" +", step, '*', axis);
  return text;
}

std::vector<View> find_views(const Graph& graph) { return begins(graph, geometries_of(graph)); }

std::vector<std::string> check_views(const Graph& graph, const std::vector<View>& views) {
  std::vector<std::string> wrong;
  const Geometries known = geometries_of(graph);
  for (const auto& op : graph.ops()) {
    if (ir::aliased_operand(*op) < 0 || !known[op->operands[0]]) continue;
    for (const auto& result : op->results()) {
      const auto& geometry = known[result.get()];
      if (!geometry)
        wrong.push_back(concat(ir::name_of(*op), " is no view of %", op->operands[0]->name(), "\n    ", ir::print(*op),
                               "\n  expected sizes that strides can say; insert aten.clone"));
      else if (!ir::same_places(result->type(), geometry->strides))
        wrong.push_back(concat('%', result->name(), " has the strides ", ir::Attr(ir::strides_of(result->type())),
                               "\n    ", ir::print(*op), "\n  expected ", ir::Attr(geometry->strides)));
    }
  }
  if (const std::vector<View> expected = begins(graph, known); views != expected) {
    const size_t at = static_cast<size_t>(std::ranges::mismatch(views, expected).in1 - views.begin());
    const auto text = [&](const std::vector<View>& of) {
      return at < of.size() ? text_of(of[at]) : std::string("no more");
    };
    wrong.push_back(concat("line ", at + 1, " of the views says ", text(views), "\n  expected ", text(expected)));
  }
  return wrong;
}

}  // namespace sfsdp::plan

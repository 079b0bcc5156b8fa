// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/views.h"

#include "sfsdp/base/check.h"
#include "sfsdp/ir/attrs.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/ir/view_geometry.h"

namespace sfsdp::plan {
namespace {

using ir::Graph, ir::Value;
using Geometries = ir::ValueTable<std::optional<ir::Geometry>>;

// By storage and view; nullopt: no strides say where its elements lie.
Geometries geometries_of(const Graph& graph) {
  Geometries known(graph);
  for (const auto& op : graph.ops())
    for (const auto& result : op->results()) {
      if (ir::aliased_operand(*op) < 0)
        known[result.get()] = ir::Geometry{ir::strides_of(result->type()), 0};
      else if (const auto& below = known[op->operands[0]])
        known[result.get()] = ir::view_geometry(*op, result->result_index(), *below);
    }
  return known;
}

View begin_of(const Value& value, const ir::Geometry& geometry) {
  return {&value, geometry.offset * ir::size_in_bytes(value.type().dtype)};
}

std::vector<View> begins(const Graph& graph, const Geometries& known) {
  std::vector<View> views;
  for (const auto& op : graph.ops()) {
    if (ir::aliased_operand(*op) < 0) continue;
    for (const auto& result : op->results())
      if (const auto& geometry = known[result.get()]; geometry && geometry->offset != 0)
        views.push_back(begin_of(*result, *geometry));
  }
  return views;
}

}  // namespace

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
      return at < of.size() ? concat('%', of[at].value->name(), " at +", of[at].offset) : std::string("no more");
    };
    wrong.push_back(concat("line ", at + 1, " of the views says ", text(views), "\n  expected ", text(expected)));
  }
  return wrong;
}

}  // namespace sfsdp::plan

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/interp/collectives.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::ir::interp {
namespace {

// An array as [outer, dim, inner], to cut and join along `dim`.
struct Blocks {
  size_t outer = 1, rows = 1, inner = 1;
  Blocks(const std::vector<int64_t>& shape, size_t dim) : rows(static_cast<size_t>(shape[dim])) {
    for (size_t d = 0; d < shape.size(); ++d)
      if (d != dim) (d < dim ? outer : inner) *= static_cast<size_t>(shape[d]);
  }
};

Array join(const std::vector<const Array*>& parts, size_t dim) {
  Array whole = *parts[0];
  whole.data.clear();
  whole.shape[dim] *= static_cast<int64_t>(parts.size());
  const Blocks part(parts[0]->shape, dim);
  const size_t run = part.rows * part.inner;
  for (size_t o = 0; o < part.outer; ++o)
    for (const Array* source : parts)
      for (size_t i = 0; i < run; ++i) whole.data.push_back(source->data[o * run + i]);
  return whole;
}

Array cut(const Array& whole, size_t dim, size_t part_index, size_t parts) {
  Array part = whole;
  part.data.clear();
  part.shape[dim] /= static_cast<int64_t>(parts);
  const Blocks blocks(whole.shape, dim);
  const size_t run = blocks.rows / parts * blocks.inner;
  for (size_t o = 0; o < blocks.outer; ++o)
    for (size_t i = 0; i < run; ++i) part.data.push_back(whole.data[(o * parts + part_index) * run + i]);
  return part;
}

Array reduce(const std::vector<const Array*>& parts, const Op& op) {
  const ReduceOp kind = reduce_op(op);
  Array out = *parts[0];
  for (size_t p = 1; p < parts.size(); ++p)
    for (size_t i = 0; i < out.data.size(); ++i) {
      const double x = parts[p]->data[i];
      double& y = out.data[i];
      y = kind == ReduceOp::Max ? std::max(y, x) : kind == ReduceOp::Min ? std::min(y, x) : y + x;
    }
  return out;
}

Array run_on_rank(const Op& op, const std::vector<const Array*>& parts, size_t place) {
  const std::string_view kind = collective_kind(op);
  if (kind == "broadcast") return *parts[static_cast<size_t>(op.attr<int64_t>("root"))];
  if (kind == "all_reduce") return reduce(parts, op);
  const auto dim = static_cast<size_t>(op.attr<int64_t>("dim"));
  if (kind == "all_gather") return join(parts, dim);
  if (kind == "reduce_scatter") return cut(reduce(parts, op), dim, place, parts.size());
  SFSDP_CHECK(false, "the interpreter has no collective ", op.opcode);
  return {};
}

}  // namespace

int64_t world_size(const Graph& graph) {
  int64_t size = 1;
  for (const MeshAxis& axis : graph.mesh) size *= axis.size;
  return size;
}

int64_t coordinate(const Graph& graph, int64_t rank, const std::string& axis) {
  for (size_t a = graph.mesh.size(); a-- > 0;) {
    if (graph.mesh[a].name == axis) return rank % graph.mesh[a].size;
    rank /= graph.mesh[a].size;
  }
  SFSDP_CHECK(false, "the mesh has no axis ", axis);
  return 0;
}

int64_t axis_rank(const Graph& graph, int64_t rank, std::span<const std::string> axes) {
  int64_t place = 0;
  for (const std::string& axis : axes) {
    const auto found = std::ranges::find(graph.mesh, axis, &MeshAxis::name);
    place = place * found->size + coordinate(graph, rank, axis);
  }
  return place;
}

std::vector<int64_t> group_of(const Graph& graph, int64_t rank, std::span<const std::string> axes) {
  std::vector<int64_t> group;
  for (int64_t other = 0; other < world_size(graph); ++other) {
    const bool same = std::ranges::all_of(graph.mesh, [&](const MeshAxis& axis) {
      return std::ranges::find(axes, axis.name) != axes.end() ||
             coordinate(graph, rank, axis.name) == coordinate(graph, other, axis.name);
    });
    if (same) group.push_back(other);
  }
  std::ranges::sort(group, {}, [&](int64_t other) { return axis_rank(graph, other, axes); });
  return group;
}

std::vector<Array> run_collective(const Graph& graph, const Op& op, std::span<const Array* const> operands) {
  const auto axes = axes_of(op);
  SFSDP_CHECK(axes.has_value(), op.opcode, " has no axis");
  std::vector<Array> results;
  for (size_t rank = 0; rank < operands.size(); ++rank) {
    std::vector<const Array*> parts;
    for (const int64_t member : group_of(graph, static_cast<int64_t>(rank), *axes))
      parts.push_back(operands[static_cast<size_t>(member)]);
    const auto place = static_cast<size_t>(axis_rank(graph, static_cast<int64_t>(rank), *axes));
    results.push_back(run_on_rank(op, parts, place));
  }
  return results;
}

}  // namespace sfsdp::ir::interp

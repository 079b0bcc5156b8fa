// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/mesh/placement.h"

#include <algorithm>
#include <array>
#include <ostream>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/mesh/chunk.h"

namespace sfsdp {

namespace {

constexpr std::array<std::string_view, 4> kReduceOps = {"sum", "avg", "max", "min"};  // in the order of ReduceOp

void check_placement(const DeviceMesh& mesh, const TensorPlacement& placement, int64_t tensor_ndim) {
  if (placement.per_axis.size() != mesh.axes().size())
    throw UserError(concat("placement on mesh ", mesh, ": ", placement.per_axis.size(), " placements for ", mesh.ndim(),
                           " axes\n  give one per axis, outer to inner; Replicate where nothing is cut"));
  for (size_t i = 0; i < placement.per_axis.size(); ++i) {
    const Shard* shard = std::get_if<Shard>(&placement.per_axis[i]);
    if (shard && (shard->dim < 0 || shard->dim >= tensor_ndim))
      throw UserError(concat("placement on mesh ", mesh, ": ", *shard, " over ", mesh.axes()[i].name,
                             " of a tensor with ", tensor_ndim, " dimensions\n  expected a dimension from 0 to ",
                             tensor_ndim - 1));
  }
}

// All axes of the mesh, those in cut_order first.
AxisList order_of_cuts(const DeviceMesh& mesh, const AxisList& cut_order) {
  AxisList order = mesh.resolve(cut_order);
  for (const MeshAxis& axis : mesh.axes())
    if (std::find(order.begin(), order.end(), axis.name) == order.end()) order.push_back(axis.name);
  return order;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Placement& placement) {
  if (const Shard* shard = std::get_if<Shard>(&placement)) return out << "Shard(" << shard->dim << ')';
  if (const Partial* partial = std::get_if<Partial>(&placement))
    return out << "Partial(" << kReduceOps[static_cast<size_t>(partial->op)] << ')';
  return out << "Replicate";
}

std::string to_string(const Placement& placement) { return concat(placement); }

Placement parse_placement(std::string_view text) {
  const std::string_view word = trim(text);
  if (word == "Replicate") return Replicate{};
  const auto argument = [&](std::string_view head) -> std::string_view {
    if (!word.starts_with(head) || !word.ends_with(')')) return {};
    return word.substr(head.size(), word.size() - head.size() - 1);
  };
  if (const auto dim = parse_int(argument("Shard(")); dim && *dim >= 0) return Shard{*dim};
  const auto op = std::find(kReduceOps.begin(), kReduceOps.end(), argument("Partial("));
  if (op != kReduceOps.end()) return Partial{static_cast<ReduceOp>(op - kReduceOps.begin())};
  throw UserError(
      concat("placement \"", text, "\": unknown\n  expected Shard(dim), Replicate, or Partial(sum|avg|max|min)"));
}

int64_t Box::numel() const {
  int64_t numel = 1;
  for (int64_t size : shape) numel *= size;
  return numel;
}

Box local_box(const std::vector<int64_t>& global_shape, const DeviceMesh& mesh, const TensorPlacement& placement,
              int64_t rank) {
  check_placement(mesh, placement, static_cast<int64_t>(global_shape.size()));
  Box box{std::vector<int64_t>(global_shape.size(), 0), global_shape};
  for (const std::string& axis : order_of_cuts(mesh, placement.cut_order)) {
    const Shard* shard = std::get_if<Shard>(&placement.per_axis[static_cast<size_t>(mesh.axis_index(axis))]);
    if (!shard) continue;
    // Each cut is a chunk of what the cuts before it left, so a rank's part stays one interval per dimension.
    const auto dim = static_cast<size_t>(shard->dim);
    const Chunk chunk = chunk_of(box.shape[dim], mesh.size(axis), mesh.axis_rank(rank, axis));
    box.offset[dim] += chunk.offset;
    box.shape[dim] = chunk.length;
  }
  return box;
}

AxisList axes_of_dim(const DeviceMesh& mesh, const TensorPlacement& placement, int64_t dim) {
  AxisList axes;
  for (const std::string& axis : order_of_cuts(mesh, placement.cut_order)) {
    const auto index = static_cast<size_t>(mesh.axis_index(axis));
    SFSDP_CHECK(index < placement.per_axis.size(), "no placement for axis ", axis);
    if (placement.per_axis[index] == Placement(Shard{dim})) axes.push_back(axis);
  }
  return axes;
}

std::string to_string(const TensorPlacement& placement, const DeviceMesh& mesh) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < placement.per_axis.size() && i < mesh.axes().size(); ++i)
    parts.push_back(concat(mesh.axes()[i].name, ": ", placement.per_axis[i]));
  std::string text = concat('[', join(parts, ", "), ']');
  if (order_of_cuts(mesh, placement.cut_order) == order_of_cuts(mesh, {})) return text;
  return concat(text, " cut ", join(mesh.resolve(placement.cut_order), ", "));
}

}  // namespace sfsdp

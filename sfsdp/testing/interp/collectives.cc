// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/interp/collectives.h"

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
  if (kind == "all_to_all") {
    std::vector<Array> blocks;
    for (const Array* part : parts)
      blocks.push_back(cut(*part, static_cast<size_t>(op.attr<int64_t>("split")), place, parts.size()));
    std::vector<const Array*> received;
    for (const Array& block : blocks) received.push_back(&block);
    return join(received, static_cast<size_t>(op.attr<int64_t>("join")));
  }
  const auto dim = static_cast<size_t>(op.attr<int64_t>("dim"));
  if (kind == "all_gather") return join(parts, dim);
  if (kind == "reduce_scatter") return cut(reduce(parts, op), dim, place, parts.size());
  SFSDP_CHECK(false, "the interpreter has no collective ", op.opcode);
  return {};
}

}  // namespace

std::vector<Array> run_collective(const DeviceMesh& mesh, const Op& op, std::span<const Array* const> operands) {
  const auto axes = axes_of(op);
  SFSDP_CHECK(axes.has_value(), op.opcode, " has no axis");
  std::vector<Array> results;
  for (int64_t rank = 0; rank < std::ssize(operands); ++rank) {
    std::vector<const Array*> parts;
    for (const int64_t member : mesh.ranks_of_group(rank, *axes))
      parts.push_back(operands[static_cast<size_t>(member)]);
    results.push_back(run_on_rank(op, parts, static_cast<size_t>(mesh.group_rank(rank, *axes))));
  }
  return results;
}

}  // namespace sfsdp::ir::interp

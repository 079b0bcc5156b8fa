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

// Which of the ranks' rows are those of one of them: by its groups, which the ends of all say.
struct RowRange {
  size_t begin = 0, end = 0;
};
RowRange rows_of_rank(const Array& ends, int64_t rows, size_t rank, size_t ranks) {
  const size_t groups = ends.data.size() / ranks;
  const auto at = [&](size_t group) { return group == 0 ? 0 : ends.data[group - 1]; };
  const double begin = at(rank * groups), end = at((rank + 1) * groups);
  SFSDP_CHECK(begin >= 0 && begin <= end && end <= static_cast<double>(rows), "groups end at ", end, " of ", rows,
              " rows");
  return {static_cast<size_t>(begin), static_cast<size_t>(end)};
}

// Those of a rank's rows that are of the round that the op is in.
RowRange in_round(const Op& op, RowRange rows, const std::vector<std::vector<const Array*>>& operands, size_t place) {
  const auto* room = op.find_attr<int64_t>("room");
  if (!room) return rows;
  const auto round = operands.size() > 3 ? static_cast<size_t>(operands[3][place]->data[0]) : 0;
  const size_t begin = std::min(rows.begin + round * static_cast<size_t>(*room), rows.end);
  return {begin, std::min(begin + static_cast<size_t>(*room), rows.end)};
}

// All rows are laid out as they would be on one rank, moved there, and cut again.
Array exchange_rows(const Op& op, const std::vector<std::vector<const Array*>>& operands, size_t place) {
  const std::vector<const Array*>& parts = operands[0];
  const Array &index = *operands[1][place], &ends = *operands[2][place];
  const size_t ranks = parts.size();
  const bool to_rows = sends_to_rows(op), adds = op.has_attr("adds");
  const int64_t in_all = to_rows || !adds ? op.attr<int64_t>("rows") : static_cast<int64_t>(index.data.size());
  std::vector<int64_t> shape = parts[0]->shape;
  shape[0] = in_all;
  Array whole = to_rows ? join(parts, 0) : Array::zeros(parts[0]->dtype, shape);
  size_t width = 1;
  for (size_t d = 1; d < whole.shape.size(); ++d) width *= static_cast<size_t>(whole.shape[d]);
  if (!to_rows)
    for (size_t rank = 0; rank < ranks; ++rank) {
      const auto [begin, end] = in_round(op, rows_of_rank(ends, whole.shape[0], rank, ranks), operands, place);
      for (size_t i = begin * width; i < end * width; ++i) whole.data[i] = parts[rank]->data[i - begin * width];
    }
  shape[0] = adds ? op.attr<int64_t>("rows") : static_cast<int64_t>(index.data.size());
  Array made = Array::zeros(whole.dtype, shape);
  for (size_t j = 0; j < index.data.size(); ++j)
    for (size_t i = 0; i < width; ++i) {
      const auto named = static_cast<size_t>(index.data[j]);
      const size_t to = (adds ? named : j) * width + i, from = (adds ? j : named) * width + i;
      SFSDP_CHECK(to < made.data.size() && from < whole.data.size(), "no row ", index.data[j]);
      made.data[to] += whole.data[from];
    }
  if (!to_rows) return cut(made, 0, place, ranks);
  const auto [begin, end] = in_round(op, rows_of_rank(ends, made.shape[0], place, ranks), operands, place);
  Array own = Array::zeros(made.dtype, op.result()->type().shape());
  for (size_t i = begin * width; i < end * width; ++i) own.data[i - begin * width] = made.data[i];
  return own;
}

Array run_on_rank(const Op& op, const std::vector<std::vector<const Array*>>& operands, size_t place) {
  const std::string_view kind = collective_kind(op);
  const std::vector<const Array*>& parts = operands[0];
  if (kind == "all_to_all_v") return exchange_rows(op, operands, place);
  if (kind == "broadcast") return *parts[static_cast<size_t>(op.attr<int64_t>("root"))];
  if (kind == "all_reduce") return reduce(parts, op);
  if (kind == "permute")
    return *parts[(place + parts.size() - static_cast<size_t>(op.attr<int64_t>("shift"))) % parts.size()];
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

std::vector<Array> run_collective(const DeviceMesh& mesh, const Op& op,
                                  std::span<const std::vector<const Array*>> operands) {
  const auto axes = axes_of(op);
  SFSDP_CHECK(axes.has_value(), op.opcode, " has no axis");
  std::vector<Array> results;
  for (int64_t rank = 0; rank < std::ssize(operands[0]); ++rank) {
    std::vector<std::vector<const Array*>> of_group(operands.size());
    for (const int64_t member : mesh.ranks_of_group(rank, *axes))
      for (size_t k = 0; k < operands.size(); ++k) of_group[k].push_back(operands[k][static_cast<size_t>(member)]);
    results.push_back(run_on_rank(op, of_group, static_cast<size_t>(mesh.group_rank(rank, *axes))));
  }
  return results;
}

}  // namespace sfsdp::ir::interp

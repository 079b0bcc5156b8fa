// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/ranges.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/view_geometry.h"

namespace sfsdp::ir {
namespace {

// A dimension of what the op takes from, or makes.
size_t named_dim(const Op& op, const Type& type) {
  const auto dim = op.attr_or<int64_t>("dim", 0);
  return static_cast<size_t>(dim < 0 ? dim + std::ssize(type.dims) : dim);
}

// Where a view begins in its operand, as if that lay in row-major order, says which range it is.
std::optional<Ranges> taken(const Op& op) {
  const Type& from = op.operands[0]->type();
  Ranges ranges{.dim = named_dim(op, from)};
  if (ranges.dim >= from.dims.size() || from.numel() == 0) return std::nullopt;
  Type dense = from;
  dense.strides.clear();
  const std::vector<int64_t> strides = strides_of(dense);
  for (size_t r = 0; r < op.results().size(); ++r) {
    const Type& to = op.results()[r]->type();
    const auto geometry = view_geometry(op, static_cast<int>(r), {strides, 0});
    if (!geometry || to.dims.size() != from.dims.size() || geometry->strides != strides) return std::nullopt;
    ranges.parts.push_back({geometry->offset / strides[ranges.dim], to.dims[ranges.dim].size});
  }
  return ranges;
}

std::optional<Ranges> joined(const Op& op) {
  const Type& to = op.result()->type();
  Ranges ranges{.dim = named_dim(op, to), .joins = true};
  if (ranges.dim >= to.dims.size() || op.attr_or<int64_t>("step", 1) != 1) return std::nullopt;
  const int64_t size = to.dims[ranges.dim].size, start = op.attr_or<int64_t>("start", 0);
  int64_t at = std::clamp<int64_t>(start < 0 ? start + size : start, 0, size);
  for (const Value* operand : op.operands) {
    if (!operand || operand->type().dims.size() != to.dims.size()) return std::nullopt;
    ranges.parts.push_back({at, operand->type().dims[ranges.dim].size});
    at += ranges.parts.back().length;
  }
  return at <= size ? std::optional(ranges) : std::nullopt;
}

}  // namespace

std::optional<Ranges> ranges_of(const Op& op) {
  if (has_flag(op, kTakesRanges)) return taken(op);
  if (has_flag(op, kJoinsRanges)) return joined(op);
  return std::nullopt;
}

void shrink_ranges(Op& op, const Type& whole) {
  if (!has_flag(op, kTakesRanges) && !has_flag(op, kJoinsRanges)) return;
  const size_t d = named_dim(op, whole);
  if (d >= whole.dims.size()) return;
  const int64_t own = op.result()->type().dims[d].size;
  if (own == 0 || own >= whole.dims[d].size) return;
  const int64_t ratio = whole.dims[d].size / own;
  for (const char* key : {"split_size", "start", "end", "length"})
    if (const auto* at = op.find_attr<int64_t>(key); at && *at != std::numeric_limits<int64_t>::max())
      op.attrs[key] = *at / ratio;
  if (const auto* sizes = op.find_attr<std::vector<int64_t>>("split_sizes")) {
    std::vector<int64_t> shrunk = *sizes;
    for (int64_t& size : shrunk) size /= ratio;
    op.attrs["split_sizes"] = std::move(shrunk);
  }
}

}  // namespace sfsdp::ir

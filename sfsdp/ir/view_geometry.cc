// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/view_geometry.h"

#include <algorithm>
#include <numeric>

#include "sfsdp/ir/by_rank.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::ir {
namespace {

using Shape = std::vector<int64_t>;

Shape row_major(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(shape[d], 1);
  return strides;
}

size_t wrapped(int64_t dim, size_t rank) {
  return static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(rank) : dim);
}

// Strides of `shape` over the same elements in the same order; nullopt: none say that. Dimensions that lie evenly one in
// the other are one chunk, and no dimension of the new shape may reach over the border of two.
std::optional<Shape> reshaped(const Shape& shape, const Shape& from, const Shape& strides) {
  const auto numel = [](const Shape& s) { return std::accumulate(s.begin(), s.end(), int64_t{1}, std::multiplies()); };
  if (numel(from) == 0) return row_major(shape);
  Shape out(shape.size(), 1);
  size_t next = shape.size();  // dimensions from here on have strides
  int64_t chunk = 1, inner = from.empty() ? 1 : strides.back();
  for (size_t d = from.size(); d-- > 0;) {
    chunk *= from[d];
    const bool ends = d == 0 || (from[d - 1] != 1 && strides[d - 1] != chunk * inner);
    if (!ends) continue;
    int64_t filled = 1;
    while (next > 0 && (filled < chunk || shape[next - 1] == 1)) {
      out[--next] = filled * inner;
      filled *= shape[next];
    }
    if (filled != chunk) return std::nullopt;
    if (d > 0) {
      chunk = 1;
      inner = strides[d - 1];
    }
  }
  while (next > 0) out[--next] = inner;  // dimensions of one element, where there was none at all
  return out;
}

// One view op: operand's shape and geometry in, the results' geometry out.
class ViewRule {
 public:
  ViewRule(const Op& op, int result, Geometry at)
      : op_(op),
        result_(static_cast<size_t>(result)),
        from_(op.operands[0]->type().shape()),
        to_(op.result(result)->type().shape()),
        at_(std::move(at)) {}

  std::optional<Geometry> run() {
    if (op_.is("wait", "gradient", "aten.alias", "aten.detach", "aten.lift_fresh", "aten._conj", "aten._neg_view"))
      return at_;
    if (op_.is("view")) {
      at_.offset += op_.attr_or<int64_t>("offset", 0);
      return op_.has_attr("offset") ? with(row_major(to_)) : with(reshaped(to_, from_, at_.strides));
    }
    if (op_.is("aten.view", "aten._unsafe_view", "aten.reshape", "aten._reshape_alias"))
      return with(reshaped(to_, from_, at_.strides));
    if (op_.is("aten.as_strided")) {
      at_.offset = op_.attr_or<int64_t>("storage_offset", at_.offset);
      return with(op_.attr<Shape>("stride"));
    }
    if (op_.is("aten.t") || op_.is("aten.transpose.int")) return transposed();
    if (op_.is("aten.permute")) {
      Shape strides;
      for (const int64_t dim : op_.attr<Shape>("dims")) strides.push_back(at_.strides[wrapped(dim, from_.size())]);
      return with(strides);
    }
    if (op_.is("aten.expand")) return expanded();
    if (op_.is("aten.unsqueeze")) return unsqueezed();
    if (op_.opcode.starts_with("aten.squeeze")) return squeezed();
    if (op_.is("aten.view_as_complex", "aten.view_as_real", "aten.view.dtype")) return seen_as_other_dtype();
    if (op_.is("aten.diagonal")) return diagonal();
    if (op_.is("aten.unfold")) return unfolded();
    return cut();
  }

 private:
  std::optional<Geometry> with(std::optional<Shape> strides) {
    if (!strides) return std::nullopt;
    at_.strides = std::move(*strides);
    return at_;
  }
  size_t dim(const char* key = "dim") const { return wrapped(op_.attr_or<int64_t>(key, 0), from_.size()); }
  // At `start` of dimension d, counted from its end where it is negative.
  void move_to(size_t d, int64_t start) {
    at_.offset += std::clamp<int64_t>(start < 0 ? start + from_[d] : start, 0, from_[d]) * at_.strides[d];
  }
  void drop(size_t d) { at_.strides.erase(at_.strides.begin() + static_cast<std::ptrdiff_t>(d)); }

  std::optional<Geometry> transposed() {
    if (from_.size() < 2) return at_;
    const bool is_t = op_.is("aten.t");
    std::swap(at_.strides[is_t ? 0 : dim("dim0")], at_.strides[is_t ? 1 : dim("dim1")]);
    return at_;
  }

  std::optional<Geometry> expanded() {
    Shape strides = at_.strides;
    const size_t added = to_.size() - from_.size();
    for (size_t d = 0; d < from_.size(); ++d)
      if (from_[d] == 1 && to_[added + d] != 1) strides[d] = 0;
    strides.insert(strides.begin(), added, 0);
    for (size_t d = added; d-- > 0;)  // a new dimension of one element is laid out like any other
      if (to_[d] == 1) strides[d] = to_[d + 1] * strides[d + 1];
    return with(strides);
  }

  std::optional<Geometry> unsqueezed() {
    const size_t d = wrapped(op_.attr_or<int64_t>("dim", 0), from_.size() + 1);
    const int64_t stride = d < from_.size() ? from_[d] * at_.strides[d] : 1;
    at_.strides.insert(at_.strides.begin() + static_cast<std::ptrdiff_t>(d), stride);
    return at_;
  }

  std::optional<Geometry> squeezed() {
    std::vector<bool> named(from_.size(), !op_.has_attr("dim"));
    if (const auto* one = op_.find_attr<int64_t>("dim")) {
      if (!from_.empty()) named[wrapped(*one, from_.size())] = true;
    } else if (const auto* several = op_.find_attr<Shape>("dim")) {
      for (const int64_t each : *several)
        if (!from_.empty()) named[wrapped(each, from_.size())] = true;
    }
    Shape strides;
    for (size_t d = 0; d < from_.size(); ++d)
      if (!named[d] || from_[d] != 1) strides.push_back(at_.strides[d]);
    return with(strides);
  }

  std::optional<Geometry> seen_as_other_dtype() {
    const int64_t from = size_in_bytes(op_.operands[0]->type().dtype), to = size_in_bytes(op_.result()->type().dtype);
    const auto scaled = [&](int64_t elements) { return elements * from / to; };
    if (op_.is("aten.view_as_complex")) at_.strides.pop_back();
    at_.offset = scaled(at_.offset);
    const bool in_last = op_.is("aten.view.dtype") && !at_.strides.empty();
    for (size_t d = 0; d < at_.strides.size() - (in_last ? 1 : 0); ++d) at_.strides[d] = scaled(at_.strides[d]);
    if (op_.is("aten.view_as_real")) at_.strides.push_back(1);
    return at_;
  }

  std::optional<Geometry> diagonal() {
    const size_t a = wrapped(op_.attr_or<int64_t>("dim1", 0), from_.size()),
                 b = wrapped(op_.attr_or<int64_t>("dim2", 1), from_.size());
    const int64_t above = op_.attr_or<int64_t>("offset", 0), stride = at_.strides[a] + at_.strides[b];
    if (to_.back() > 0) at_.offset += above >= 0 ? above * at_.strides[b] : -above * at_.strides[a];
    drop(std::max(a, b));
    drop(std::min(a, b));
    at_.strides.push_back(stride);
    return at_;
  }

  std::optional<Geometry> unfolded() {
    const size_t d = dim("dimension");
    const int64_t stride = from_.empty() ? 1 : at_.strides[d];
    if (!from_.empty()) at_.strides[d] *= op_.attr<int64_t>("step");
    at_.strides.push_back(stride);
    return at_;
  }

  // What takes positions of one dimension.
  std::optional<Geometry> cut() {
    if (from_.empty()) return std::nullopt;
    const size_t d = dim();
    const auto result = static_cast<int64_t>(result_);
    if (op_.is("narrow")) {
      move_to(d, op_.attr<int64_t>("start"));
    } else if (op_.is("aten.slice.Tensor")) {
      move_to(d, op_.attr_or<int64_t>("start", 0));
      at_.strides[d] *= op_.attr_or<int64_t>("step", 1);
    } else if (op_.is("aten.select.int")) {
      move_to(d, op_.attr<int64_t>("index"));
      drop(d);
    } else if (op_.is("aten.unbind.int")) {
      move_to(d, result);
      drop(d);
    } else if (op_.is("aten.split.Tensor")) {
      move_to(d, result * op_.attr<int64_t>("split_size"));
    } else if (op_.is("aten.split_with_sizes")) {
      const auto& sizes = op_.attr<Shape>("split_sizes");
      move_to(d, std::accumulate(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(result), int64_t{0}));
    } else {
      return std::nullopt;
    }
    return at_;
  }

  const Op& op_;
  const size_t result_;
  const Shape from_, to_;
  Geometry at_;  // of the operand, then of the result
};

}  // namespace

std::vector<int64_t> strides_of(const Type& type) {
  return type.strides.empty() ? row_major(type.shape()) : type.strides;
}

std::optional<Geometry> view_geometry(const Op& view, int result, const Geometry& operand) {
  if (aliased_operand(view) < 0 || !coordinate_axes(view).empty()) return std::nullopt;
  return ViewRule(view, result, operand).run();
}

std::optional<Geometry> geometry_of(const Value& value) {
  const Op& op = *value.producer();
  if (aliased_operand(op) < 0) return Geometry{strides_of(value.type()), 0};
  const auto below = geometry_of(*op.operands[0]);
  return below ? view_geometry(op, value.result_index(), *below) : std::nullopt;
}

bool same_places(const Type& type, const std::vector<int64_t>& strides) {
  if (type.numel() == 0) return true;
  const std::vector<int64_t> own = strides_of(type);
  if (own.size() != strides.size()) return false;
  for (size_t d = 0; d < own.size(); ++d)
    if (type.dims[d].size != 1 && own[d] != strides[d]) return false;
  return true;
}

bool is_in_place(const Carry& carry) {
  if (memory_of(carry.next) != carry.current) return false;
  const auto geometry = geometry_of(*carry.next);
  return geometry && geometry->offset == 0 && same_places(carry.current->type(), geometry->strides);
}

}  // namespace sfsdp::ir

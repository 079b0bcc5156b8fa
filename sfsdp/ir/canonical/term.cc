// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/canonical/term.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/view_geometry.h"

namespace sfsdp::ir {
namespace {

using Sizes = std::vector<int64_t>;

// A tensor's type, with no strides where they are those of a contiguous one.
Type typed(DType dtype, const Sizes& shape, const Sizes& strides) {
  Type type = Type::tensor(dtype, shape);
  if (strides != strides_of(type)) type.strides = strides;
  return type;
}

// Real numbers of an element.
int64_t numbers(DType dtype) { return dtype == DType::c64 ? 2 : 1; }

// Elements of its operand before the first one of this view; nullopt: not known, not counted from there, or the view
// shows other numbers than lie there.
std::optional<int64_t> offset_in_operand(const Op& op, int result) {
  if (op.is("aten.as_strided", "aten.view.dtype", "aten._conj", "aten._neg_view")) return std::nullopt;
  const auto geometry = view_geometry(op, result, {strides_of(op.operands[0]->type()), 0});
  return geometry ? std::optional(geometry->offset) : std::nullopt;
}

}  // namespace

Term term_of(Value* value) {
  const Type& own = value->type();
  Term term{
      value, 0,
      own.strides.empty() ? Type::tensor(own.dtype, own.shape()) : typed(own.dtype, own.shape(), strides_of(own))};
  while (aliased_operand(*term.base->producer()) >= 0) {
    const auto offset = offset_in_operand(*term.base->producer(), term.base->result_index());
    if (!offset) break;
    Value* operand = term.base->producer()->operands[0];
    term.offset += *offset * numbers(operand->type().dtype);
    term.base = operand;
  }
  return term;
}

bool same_layout(const Type& a, const Type& b) {
  if (a.shape() != b.shape()) return false;
  if (a.numel() == 0) return true;
  const Sizes ours = strides_of(a), theirs = strides_of(b);
  for (size_t d = 0; d < a.dims.size(); ++d)
    if (a.dims[d].size > 1 && ours[d] != theirs[d]) return false;
  return true;
}

bool is_same(const Term& a, const Term& b) {
  return a.base && a.base == b.base && a.offset == b.offset && a.type.dtype == b.type.dtype &&
         same_layout(a.type, b.type);
}

Term viewed(const Term& x, const Sizes& shape) {
  if (!x.base || Type::tensor(x.type.dtype, shape).numel() != x.type.numel()) return {};
  if (x.type.strides.empty()) return {x.base, x.offset, Type::tensor(x.type.dtype, shape)};
  // Runs of dimensions that lie one after the other are cut again, from the last one on; those of size 1 lie anywhere.
  Sizes old, strides;
  for (size_t d = 0; d < x.type.dims.size(); ++d) {
    if (x.type.dims[d].size == 1) continue;
    old.push_back(x.type.dims[d].size);
    strides.push_back(x.type.strides[d]);
  }
  Sizes result(shape.size());
  size_t to = shape.size();
  int64_t stride = 1;
  for (size_t end = old.size(); end > 0;) {
    size_t begin = end - 1;
    int64_t left = old[begin];
    stride = strides[begin];
    while (begin > 0 && strides[begin - 1] == strides[begin] * old[begin]) left *= old[--begin];
    while (to > 0 && left > 1 && left % shape[to - 1] == 0) {
      result[--to] = stride;
      stride *= shape[to];
      left /= shape[to];
    }
    if (left != 1) return {};
    end = begin;
  }
  while (to > 0) result[--to] = stride;  // of size 1
  return {x.base, x.offset, typed(x.type.dtype, shape, result)};
}

Term transposed(const Term& x, size_t dim0, size_t dim1) {
  if (!x.base || dim0 >= x.type.dims.size() || dim1 >= x.type.dims.size()) return {};
  Sizes shape = x.type.shape(), strides = strides_of(x.type);
  std::swap(shape[dim0], shape[dim1]);
  std::swap(strides[dim0], strides[dim1]);
  return {x.base, x.offset, typed(x.type.dtype, shape, strides)};
}

// The new dimension's stride is that of what follows it, as LibTorch has it.
Term unsqueezed(const Term& x, size_t dim) {
  if (!x.base || dim > x.type.dims.size()) return {};
  Sizes shape = x.type.shape(), strides = strides_of(x.type);
  const int64_t stride = dim < shape.size() ? shape[dim] * strides[dim] : 1;
  const auto at = static_cast<std::ptrdiff_t>(dim);
  shape.insert(shape.begin() + at, 1);
  strides.insert(strides.begin() + at, stride);
  return {x.base, x.offset, typed(x.type.dtype, shape, strides)};
}

Term selected(const Term& x, size_t dim, int64_t index) {
  if (!x.base || dim >= x.type.dims.size() || index < 0 || index >= x.type.dims[dim].size) return {};
  Sizes shape = x.type.shape(), strides = strides_of(x.type);
  const int64_t offset = x.offset + index * strides[dim] * numbers(x.type.dtype);
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(dim));
  strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(dim));
  return {x.base, offset, typed(x.type.dtype, shape, strides)};
}

Term expanded(const Term& x, const Sizes& shape) {
  if (!x.base || x.type.dims.size() != shape.size()) return {};
  Sizes strides = strides_of(x.type);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (x.type.dims[d].size == shape[d]) continue;
    if (x.type.dims[d].size != 1) return {};
    strides[d] = 0;
  }
  return {x.base, x.offset, typed(x.type.dtype, shape, strides)};
}

Term sliced(const Term& x, size_t dim, int64_t start, int64_t end) {
  if (!x.base || dim >= x.type.dims.size() || start < 0 || end < start || end > x.type.dims[dim].size) return {};
  Sizes shape = x.type.shape();
  const Sizes strides = strides_of(x.type);
  shape[dim] = end - start;
  return {x.base, x.offset + start * strides[dim] * numbers(x.type.dtype), typed(x.type.dtype, shape, strides)};
}

Term as_complex(const Term& x) {
  if (!x.base || x.type.dtype != DType::f32 || x.type.dims.empty() || x.type.dims.back().size != 2) return {};
  Sizes shape = x.type.shape(), strides = strides_of(x.type);
  if (strides.back() != 1 || x.offset % 2 != 0) return {};
  shape.pop_back();
  strides.pop_back();
  for (int64_t& stride : strides) {
    if (stride % 2 != 0) return {};
    stride /= 2;
  }
  return {x.base, x.offset, typed(DType::c64, shape, strides)};
}

Term as_real(const Term& x) {
  if (!x.base || x.type.dtype != DType::c64) return {};
  Sizes shape = x.type.shape(), strides = strides_of(x.type);
  shape.push_back(2);
  for (int64_t& stride : strides) stride *= 2;
  strides.push_back(1);
  return {x.base, x.offset, typed(DType::f32, shape, strides)};
}

namespace {

// NumPy's rule; shapes are known to fit.
Sizes broadcast(const std::vector<Term>& terms) {
  Sizes shape;
  for (const Term& term : terms) {
    const Sizes own = term.type.shape();
    if (own.size() > shape.size()) shape.insert(shape.begin(), own.size() - shape.size(), 1);
    for (size_t d = 0; d < own.size(); ++d) {
      int64_t& size = shape[shape.size() - own.size() + d];
      if (size == 1) size = own[d];
    }
  }
  return shape;
}

// By dimension of `shape`; 0 where the operand is broadcast.
Sizes broadcast_strides(const Type& type, const Sizes& shape) {
  Sizes strides(shape.size(), 0);
  const Sizes own = strides_of(type);
  for (size_t d = 0; d < own.size(); ++d) {
    const size_t to = shape.size() - own.size() + d;
    if (type.dims[d].size == shape[to]) strides[to] = own[d];
  }
  return strides;
}

// Above 0: dimension b is to lie within a. 0: no operand tells.
int compare_dims(size_t a, size_t b, const std::vector<Sizes>& operands, const Sizes& shape) {
  for (const Sizes& strides : operands) {
    if (strides[a] == 0 || strides[b] == 0) continue;
    if (strides[a] != strides[b]) return strides[a] < strides[b] ? -1 : 1;
    if (shape[a] > shape[b]) return 1;
  }
  return 0;
}

}  // namespace

Type pointwise_type(DType dtype, const std::vector<Term>& operands) {
  const Sizes shape = broadcast(operands);
  std::vector<Sizes> strides;
  for (const Term& term : operands) strides.push_back(broadcast_strides(term.type, shape));
  // An insertion sort, innermost first, that leaves alone what nobody tells apart. Comparisons are no order: the steps count.
  Sizes order;
  for (size_t d = shape.size(); d-- > 0;) order.push_back(static_cast<int64_t>(d));
  for (size_t i = 1; i < order.size(); ++i) {
    size_t at = i;
    for (size_t before = i; before-- > 0;) {
      const int compared =
          compare_dims(static_cast<size_t>(order[before]), static_cast<size_t>(order[at]), strides, shape);
      if (compared < 0) break;
      if (compared > 0) std::swap(order[before], order[at]), at = before;
    }
  }
  Sizes dense(shape.size());
  int64_t next = 1;
  for (const int64_t dim : order) {
    dense[static_cast<size_t>(dim)] = next;
    next *= std::max<int64_t>(shape[static_cast<size_t>(dim)], 1);
  }
  Type type = Type::tensor(dtype, shape);
  type.strides = dense;
  if (same_layout(type, Type::tensor(dtype, shape))) type.strides.clear();
  return type;
}

}  // namespace sfsdp::ir

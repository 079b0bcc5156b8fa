// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/canonical/term.h"

#include <optional>

#include "sfsdp/ir/opset.h"

namespace sfsdp::ir {
namespace {

using Sizes = std::vector<int64_t>;

// Of a shape and strides; empty strides where they are those of a contiguous tensor.
Type typed(DType dtype, const Sizes& shape, const Sizes& strides) {
  Type type = Type::tensor(dtype, shape);
  if (strides != strides_of(type)) type.strides = strides;
  return type;
}

int64_t wrapped(int64_t dim, size_t rank) { return dim < 0 ? dim + static_cast<int64_t>(rank) : dim; }

// Real numbers of an element.
int64_t numbers(DType dtype) { return dtype == DType::c64 ? 2 : 1; }

// Elements of its operand before the first one of this view; nullopt: not known.
std::optional<int64_t> offset_in_operand(const Op& op, int result) {
  if (op.is("wait", "gradient", "aten.view_as_complex", "aten.view_as_real")) return 0;
  if (has_flag(op, kReshape)) return op.attr_or<int64_t>("offset", 0);
  if (has_flag(op, kPermute) || op.is("aten.expand")) return 0;
  const Type& from = op.operands[0]->type();
  const Sizes strides = strides_of(from);
  const auto stride = [&]() -> std::optional<int64_t> {
    const int64_t dim = wrapped(op.attr_or<int64_t>("dim", 0), strides.size());
    if (dim < 0 || dim >= std::ssize(strides)) return std::nullopt;
    return strides[static_cast<size_t>(dim)];
  }();
  if (!stride) return std::nullopt;
  const int64_t size = from.dims[static_cast<size_t>(wrapped(op.attr_or<int64_t>("dim", 0), strides.size()))].size;
  const auto from_end = [&](int64_t index) { return index < 0 ? index + size : index; };
  if (op.is("narrow")) return op.attr<int64_t>("start") * *stride;
  if (op.is("aten.select.int")) return from_end(op.attr<int64_t>("index")) * *stride;
  if (op.is("aten.slice.Tensor")) return from_end(op.attr_or<int64_t>("start", 0)) * *stride;
  if (op.is("aten.split.Tensor")) return result * op.attr<int64_t>("split_size") * *stride;
  if (op.is("aten.unbind.int")) return result * *stride;
  return std::nullopt;
}

}  // namespace

Sizes strides_of(const Type& type) {
  if (!type.strides.empty() || type.dims.empty()) return type.strides;
  Sizes strides(type.dims.size(), 1);
  for (size_t d = type.dims.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * type.dims[d + 1].size;
  return strides;
}

Term term_of(Value* value) {
  Term term{value, 0, typed(value->type().dtype, value->type().shape(), strides_of(value->type()))};
  while (aliased_operand(*term.base->producer()) >= 0) {
    const auto offset = offset_in_operand(*term.base->producer(), term.base->result_index());
    if (!offset) break;
    Value* operand = term.base->producer()->operands[0];
    term.offset += *offset * numbers(operand->type().dtype);
    term.base = operand;
  }
  return term;
}

bool is_same(const Term& a, const Term& b) {
  if (!a.base || a.base != b.base || a.offset != b.offset || a.type.dtype != b.type.dtype) return false;
  if (a.type.dims.size() != b.type.dims.size()) return false;
  const Sizes ours = strides_of(a.type), theirs = strides_of(b.type);
  for (size_t d = 0; d < a.type.dims.size(); ++d) {
    if (a.type.dims[d].size != b.type.dims[d].size) return false;
    if (a.type.dims[d].size > 1 && ours[d] != theirs[d]) return false;
  }
  return true;
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

}  // namespace sfsdp::ir

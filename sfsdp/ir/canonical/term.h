// SPDX-License-Identifier: BSD-3-Clause
// A value by what it holds, not by how it was reached: which memory, from where on, in which shape and strides. Two
// chains of views that end at the same elements are one term.
#pragma once

#include <cstdint>

#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

struct Term {
  Value* base = nullptr;  // whose memory it is; nullptr: there is no such value
  int64_t offset = 0;     // real numbers of `base` before the first one: a complex element is two
  Type type;              // dtype, shape and strides; strides are empty where it is contiguous
};

// Looks through views as far as their offset is known; a view that it does not know is a base.
Term term_of(Value* value);

// The same sizes, each element at the same place. Strides of dimensions of size 1 do not count, nor do those of no elements.
bool same_layout(const Type& a, const Type& b);

// The same elements in the same order and dtype.
bool is_same(const Term& a, const Term& b);

// ---- views of a term; an invalid one (base nullptr) where LibTorch would have to copy, or the shape does not fit

Term viewed(const Term& x, const std::vector<int64_t>& shape);  // aten.view
Term transposed(const Term& x, size_t dim0, size_t dim1);
Term unsqueezed(const Term& x, size_t dim);
Term selected(const Term& x, size_t dim, int64_t index);
Term expanded(const Term& x, const std::vector<int64_t>& shape);  // of as many dimensions
Term sliced(const Term& x, size_t dim, int64_t start, int64_t end);
Term as_complex(const Term& x);  // pairs along the last dimension, f32
Term as_real(const Term& x);     // the other way round

// What LibTorch makes of these operands element by element: their broadcast shape, dense. The order of dimensions in memory is
// that of the first operand that tells two of them apart, as in TensorIterator::reorder_dimensions.
Type pointwise_type(DType dtype, const std::vector<Term>& operands);

}  // namespace sfsdp::ir

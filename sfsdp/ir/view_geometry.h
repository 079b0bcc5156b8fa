// SPDX-License-Identifier: BSD-3-Clause
// Where the elements of a view lie in the memory that it shares.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

// Element [i, j, …] lies `offset` + i · strides[0] + j · strides[1] + … elements after the first one of the storage.
struct Geometry {
  std::vector<int64_t> strides;
  int64_t offset = 0;
  bool operator==(const Geometry&) const = default;
};

// A type's strides as numbers: those of row-major order where it has none.
std::vector<int64_t> strides_of(const Type& type);

// What LibTorch gives result `result` of a view op whose operand 0 has this geometry and the strides of its type
// (aten/src/ATen/native/TensorShape.cpp). nullopt: no view op, one that is not known, or whose begin differs by
// rank, or a `view` that needs a copy.
std::optional<Geometry> view_geometry(const Op& view, int result, const Geometry& operand);

// The same through all views from the storage on, which begins at 0 with the strides of its type.
std::optional<Geometry> geometry_of(const Value& value);

// Whether strides say the same of every element: those of dimensions of one element, and of tensors without elements, are free.
bool same_places(const Type& type, const std::vector<int64_t>& strides);

// Whether what a carry hands on lies, element by element, where the value lies that it replaces: at fixed addresses nothing
// else can be handed on.
bool is_in_place(const Carry& carry);

}  // namespace sfsdp::ir

// SPDX-License-Identifier: BSD-3-Clause
// LibTorch's dtypes and tensors as IR types, and schema arguments as IR attributes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::capture {

// Throws UserError for a dtype the IR does not have (quantised, c128, …).
ir::DType dtype_of(c10::ScalarType type);
c10::ScalarType scalar_type_of(ir::DType dtype);
// dtype and sizes of a defined tensor.
ir::Type contiguous_type_of(const at::Tensor& tensor);
// dtype, sizes and, unless contiguous, strides.
ir::Type type_of(const at::Tensor& tensor);

// A non-tensor argument as an attribute. `where` names the op, for the error of a kind that no attribute has.
ir::Attr attr_of(const c10::IValue& value, const c10::Argument& argument, const std::function<std::string()>& where);
// The inverse, for a call with `argument`'s type.
c10::IValue ivalue_of(const ir::Attr& attr, const c10::Argument& argument);

// Appends the tensors of a value, of lists and tuples too; an undefined one where the value is none.
void collect(const c10::IValue& value, std::vector<at::Tensor>& out);

// Whether the argument takes Tensor, Tensor? / Tensor[], Tensor?[].
bool takes_tensor(const c10::Argument& argument);
bool takes_tensor_list(const c10::Argument& argument);

}  // namespace sfsdp::capture

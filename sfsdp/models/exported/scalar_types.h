// SPDX-License-Identifier: BSD-3-Clause
// Dtypes of an archive as LibTorch has them.
#pragma once

#include <c10/core/ScalarType.h>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/type.h"

namespace sfsdp::models {

inline c10::ScalarType scalar_type_of(ir::DType dtype) {
  switch (dtype) {
    case ir::DType::f64: return c10::ScalarType::Double;
    case ir::DType::f32: return c10::ScalarType::Float;
    case ir::DType::bf16: return c10::ScalarType::BFloat16;
    case ir::DType::f16: return c10::ScalarType::Half;
    case ir::DType::f8e4m3: return c10::ScalarType::Float8_e4m3fn;
    case ir::DType::f8e5m2: return c10::ScalarType::Float8_e5m2;
    case ir::DType::c64: return c10::ScalarType::ComplexFloat;
    case ir::DType::i64: return c10::ScalarType::Long;
    case ir::DType::i32: return c10::ScalarType::Int;
    case ir::DType::i16: return c10::ScalarType::Short;
    case ir::DType::i8: return c10::ScalarType::Char;
    case ir::DType::u8: return c10::ScalarType::Byte;
    case ir::DType::b1: return c10::ScalarType::Bool;
  }
  SFSDP_CHECK(false, "dtype ", static_cast<int>(dtype));
}

}  // namespace sfsdp::models

// SPDX-License-Identifier: BSD-3-Clause
// Floating-point numbers from one stored dtype to another, over bytes. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "sfsdp/ir/type.h"

namespace sfsdp::train {

// f64, f32, bf16 and f16: what weights are stored as.
bool is_weight_dtype(ir::DType dtype);

// Rounds to nearest, ties to even; from f64 to half precision through f32, as LibTorch does. The same dtype: a copy.
//   in, out:  as many elements of one as of the other, no alignment asked for, not overlapping
//   returns:  how many finite numbers became infinite, because they are too large for out_dtype
int64_t convert_floats(std::span<const std::byte> in, ir::DType in_dtype, std::span<std::byte> out,
                       ir::DType out_dtype);

// The same with rows and columns exchanged: out[c · out_stride + r] = in[r · in_stride + c], strides in elements. `in` and
// `out` begin at the first element that is read and written.
int64_t convert_transposed(std::span<const std::byte> in, ir::DType in_dtype, int64_t in_stride, int64_t rows,
                           int64_t columns, std::span<std::byte> out, ir::DType out_dtype, int64_t out_stride);

// The index of the first element that is infinite or no number; none if all are finite.
//   in:  any alignment
std::optional<int64_t> first_not_finite(std::span<const std::byte> in, ir::DType dtype);

}  // namespace sfsdp::train

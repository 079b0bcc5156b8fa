// SPDX-License-Identifier: BSD-3-Clause
// Numbers as a machine's memory holds them: little-endian bytes of a dtype, at strides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sfsdp/ir/type.h"
#include "sfsdp/testing/interp/array.h"

namespace sfsdp::plan::machine {

// The number that starts at `from`. c64: its real part. i64: the nearest double; what a program makes is one, but a kernel that is
// evaluated again may meet the bytes of another dtype, which it has written over its operand.
double decode(ir::DType dtype, const std::byte* from);
// A number that dtype holds exactly (interp::round_to).
//   throws: UserError for an i64 beyond 2^53, where doubles are no longer each integer
void encode(ir::DType dtype, double value, std::byte* to);

// By element in row-major order, where it begins: bytes from the first one's.
std::vector<int64_t> offsets_of(const ir::Type& type);

// A tensor whose first element begins at `memory`.
//   offsets: offsets_of(type)
ir::interp::Array load(const ir::Type& type, std::span<const int64_t> offsets, const std::byte* memory);
// Writes the elements that `which` names, or all where it is empty.
void store(ir::DType dtype, const ir::interp::Array& array, std::span<const int64_t> offsets, std::byte* memory,
           std::span<const char> which = {});

}  // namespace sfsdp::plan::machine

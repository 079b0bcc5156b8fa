// SPDX-License-Identifier: BSD-3-Clause
// Elements of a tensor out of an archive, in row-major order, whatever its strides are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sfsdp/exported/program.h"

namespace sfsdp::exported {

// Copies elements [first, first + out.size() / size of one) of the tensor. Where a tensor lies row by row no other byte is
// read; where it does not, the span of the file that holds a block of 65,536 elements is.
//   throws: UserError naming the tensor's entry if the file has become shorter
void read_values(const ZipArchive& archive, const StateTensor& tensor, int64_t first, std::span<std::byte> out);

}  // namespace sfsdp::exported

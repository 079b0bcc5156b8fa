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

// Whether the elements lie in their row-major order, one after the other.
bool is_row_major(const StateTensor& tensor);
// Where element `index` of the row-major order lies in the entry, in elements.
int64_t place_of(const StateTensor& tensor, int64_t index);

}  // namespace sfsdp::exported

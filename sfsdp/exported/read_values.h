// SPDX-License-Identifier: BSD-3-Clause
// Elements of a tensor out of an archive, in row-major order, whatever its strides are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sfsdp/exported/program.h"

namespace sfsdp::exported {

// Copies elements [first, first + out.size() / size of one) of the tensor. Of a tensor that lies row by row no other byte is
// read; of one with other strides each run of elements that lie side by side is read by itself, or the whole span at once.
//   throws: UserError naming the tensor's entry if the file has become shorter
void read_values(const ZipArchive& archive, const StateTensor& tensor, int64_t first, std::span<std::byte> out);

}  // namespace sfsdp::exported

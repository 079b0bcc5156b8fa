// SPDX-License-Identifier: BSD-3-Clause
// Weights out of an archive of torch.export, in the dtype that they are to have here. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sfsdp/exported/program.h"
#include "sfsdp/plan/storage_layout.h"

namespace sfsdp::train {

// Elements `box` of the tensor, in row-major order, as `dtype`: its own, or another where both are weight dtypes. Where the
// tensor does not lie row by row in the file, and the box is no range of it, whole rows are read a block at a time.
//   throws: UserError as exported::read_values does
void read_archive_values(const exported::ZipArchive& archive, const exported::StateTensor& tensor, const plan::Box& box,
                         std::span<std::byte> out, ir::DType dtype);

}  // namespace sfsdp::train

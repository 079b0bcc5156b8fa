// SPDX-License-Identifier: BSD-3-Clause
// Weights out of an archive of torch.export, in the dtype that they are to have here. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sfsdp/exported/program.h"

namespace sfsdp::train {

// Elements [first, …) of the tensor, in row-major order, as `dtype`: its own, or another where both are weight dtypes.
//   throws: UserError as exported::read_values does
void read_archive_values(const exported::ZipArchive& archive, const exported::StateTensor& tensor, int64_t first,
                         std::span<std::byte> out, ir::DType dtype);

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/archive_values.h"

#include <algorithm>
#include <vector>

#include "sfsdp/exported/read_values.h"
#include "sfsdp/train/weights/float_convert.h"

namespace sfsdp::train {

void read_archive_values(const exported::ZipArchive& archive, const exported::StateTensor& tensor, int64_t first,
                         std::span<std::byte> out, ir::DType dtype) {
  if (dtype == tensor.dtype) return exported::read_values(archive, tensor, first, out);
  constexpr int64_t kBlock = 1 << 17;  // elements
  const int64_t from = ir::size_in_bytes(tensor.dtype), to = ir::size_in_bytes(dtype);
  const int64_t length = static_cast<int64_t>(out.size()) / to;
  std::vector<std::byte> staging(static_cast<size_t>(std::min(kBlock, length) * from));
  for (int64_t begin = 0; begin < length; begin += kBlock) {
    const int64_t count = std::min(kBlock, length - begin);
    const auto block = std::span(staging).first(static_cast<size_t>(count * from));
    exported::read_values(archive, tensor, first + begin, block);
    convert_floats(block, tensor.dtype, out.subspan(static_cast<size_t>(begin * to), static_cast<size_t>(count * to)),
                   dtype);
  }
}

}  // namespace sfsdp::train

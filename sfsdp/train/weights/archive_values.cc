// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/archive_values.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/exported/read_values.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/train/weights/float_convert.h"

namespace sfsdp::train {

namespace {

using exported::StateTensor, exported::ZipArchive;

// Elements [first, …).
void read_range(const ZipArchive& archive, const StateTensor& tensor, int64_t first, std::span<std::byte> out,
                ir::DType dtype) {
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

// What a box has of a tensor whose rows are apart in the file: a run of it alone may span all of that.
void read_blocks(const ZipArchive& archive, const StateTensor& tensor, const plan::Box& box, std::span<std::byte> out,
                 ir::DType dtype) {
  constexpr int64_t kBlock = 1 << 16;  // elements, as exported::read_values reads them
  const int64_t element = ir::size_in_bytes(dtype);
  plan::Box whole = plan::whole_beside(box, tensor.sizes);
  const Chunk wanted = plan::CommonRuns(whole, box).range();
  const int64_t end = wanted.offset + wanted.length;
  std::vector<std::byte> staging;
  for (int64_t begin = wanted.offset; begin < end; begin += kBlock) {
    whole.flat = {begin, std::min(kBlock, end - begin)};
    plan::CommonRuns runs(whole, box);
    if (runs.range().length == 0) continue;
    staging.resize(static_cast<size_t>(whole.flat.length * element));
    read_range(archive, tensor, begin, staging, dtype);
    while (const auto run = runs.next())
      std::memcpy(out.data() + (run->second - box.flat.offset) * element,
                  staging.data() + (run->first - begin) * element, static_cast<size_t>(run->count * element));
  }
}

}  // namespace

void read_archive_values(const ZipArchive& archive, const StateTensor& tensor, const plan::Box& box,
                         std::span<std::byte> out, ir::DType dtype) {
  const int64_t element = ir::size_in_bytes(dtype);
  SFSDP_CHECK(static_cast<int64_t>(out.size()) == box.flat.length * element, out.size(), " bytes for ", box.flat.length,
              " elements of ", ir::to_string(dtype));
  plan::CommonRuns runs(box, plan::whole_beside(box, tensor.sizes));
  std::optional<plan::BoxRun> run = runs.next();
  if (run && run->count < box.flat.length && !exported::is_row_major(tensor))
    return read_blocks(archive, tensor, box, out, dtype);
  for (; run; run = runs.next())
    read_range(archive, tensor, run->second,
               out.subspan(static_cast<size_t>((run->first - box.flat.offset) * element),
                           static_cast<size_t>(run->count * element)),
               dtype);
}

}  // namespace sfsdp::train

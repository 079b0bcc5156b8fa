// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/read_values.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "sfsdp/base/check.h"

namespace sfsdp::exported {
bool is_row_major(const StateTensor& t) {
  int64_t step = 1;
  for (size_t d = t.sizes.size(); d-- > 0;) {
    if (t.sizes[d] > 1 && t.strides[d] != step) return false;
    step *= t.sizes[d];
  }
  return true;
}

// Where element `index` of the row-major order lies in the storage.
int64_t place_of(const StateTensor& t, int64_t index) {
  int64_t place = t.offset;
  for (size_t d = t.sizes.size(); d-- > 0; index /= t.sizes[d]) place += index % t.sizes[d] * t.strides[d];
  return place;
}

void read_values(const ZipArchive& archive, const StateTensor& tensor, int64_t first, std::span<std::byte> out) {
  const ZipEntry& entry = archive.entries()[tensor.entry];
  const int64_t element = ir::size_in_bytes(tensor.dtype), count = static_cast<int64_t>(out.size()) / element;
  SFSDP_CHECK(static_cast<int64_t>(out.size()) == count * element, out.size(), " bytes");
  SFSDP_CHECK(first >= 0 && first + count <= ir::Type::tensor(tensor.dtype, tensor.sizes).numel(), first, " + ", count);
  if (count == 0) return;
  if (is_row_major(tensor)) {
    archive.read(entry, static_cast<uint64_t>((tensor.offset + first) * element), out);
    return;
  }
  // Blocks of elements: the span of storage that each needs, read at once, then put in order.
  constexpr int64_t kBlock = 1 << 16;
  std::vector<std::byte> span;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    std::vector<int64_t> places(static_cast<size_t>(length));
    for (int64_t i = 0; i < length; ++i) places[static_cast<size_t>(i)] = place_of(tensor, first + begin + i);
    const auto [least, most] = std::ranges::minmax(places);
    span.resize(static_cast<size_t>((most - least + 1) * element));
    archive.read(entry, static_cast<uint64_t>(least * element), span);
    for (int64_t i = 0; i < length; ++i)
      std::memcpy(out.data() + (begin + i) * element, span.data() + (places[static_cast<size_t>(i)] - least) * element,
                  static_cast<size_t>(element));
  }
}

}  // namespace sfsdp::exported

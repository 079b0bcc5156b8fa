// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/embedding.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "sfsdp/base/check.h"
#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels {

void embedding_backward(const EmbeddingGrad& call, std::vector<int64_t>& order) {
  order.resize(static_cast<size_t>(call.rows));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, {}, [&](int64_t row) { return call.ids[row]; });
  const auto row_bytes = static_cast<size_t>(call.width * ir::size_in_bytes(call.out_dtype));
  auto* out = static_cast<std::byte*>(call.out);
  const int64_t known = call.whole > 0 ? call.whole : call.num_weights;
  int64_t zero_from = 0;
  for (size_t first = 0, next = 0; first < order.size(); first = next) {
    const int64_t id = call.ids[order[first]];
    SFSDP_CHECK(id >= 0 && id < known, "id ", id, " of ", known, " rows");
    while (next < order.size() && call.ids[order[next]] == id) ++next;
    const int64_t row = id - call.first;
    if (id == call.padding || row < 0 || row >= call.num_weights) continue;
    std::memset(out + static_cast<size_t>(zero_from) * row_bytes, 0, static_cast<size_t>(row - zero_from) * row_bytes);
    family().embedding_row(call, order.data() + first, static_cast<int64_t>(next - first), row);
    zero_from = row + 1;
  }
  std::memset(out + static_cast<size_t>(zero_from) * row_bytes, 0,
              static_cast<size_t>(call.num_weights - zero_from) * row_bytes);
}

}  // namespace sfsdp::kernels

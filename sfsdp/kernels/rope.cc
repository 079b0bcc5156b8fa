// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/rope.h"

#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels {

int64_t rope_rows(const Rope& call) {
  int64_t rows = 1;
  for (const int64_t size : call.sizes) rows *= size;
  return rows;
}

void rope(const Rope& call, int64_t begin, int64_t end) { family().rope(call, begin, end); }

}  // namespace sfsdp::kernels

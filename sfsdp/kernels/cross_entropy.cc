// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/cross_entropy.h"

#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels {

void cross_entropy(const CrossEntropy& call, int64_t begin, int64_t end) { family().cross_entropy(call, begin, end); }

void cross_entropy_parts(const CrossEntropy& call, int64_t begin, int64_t end) {
  family().cross_entropy_parts(call, begin, end);
}

void cross_entropy_backward(const CrossEntropy& call, int64_t begin, int64_t end) {
  family().cross_entropy_backward(call, begin, end);
}

}  // namespace sfsdp::kernels

// SPDX-License-Identifier: BSD-3-Clause
// All arithmetic of a family of processors: included once in each family_*.cc, after everything else; see vector.h.
// NOLINTBEGIN
#include "sfsdp/kernels/vector.h"

#include "sfsdp/kernels/small_product.h"

#include "sfsdp/kernels/attention_tiles.h"

#include "sfsdp/kernels/adam_kernel.h"
#include "sfsdp/kernels/attention_kernel.h"
#ifdef SFSDP_DOT
#include "sfsdp/kernels/attention_pairs_kernel.h"
#endif
#include "sfsdp/kernels/cross_entropy_kernel.h"
#include "sfsdp/kernels/embedding_kernel.h"
#include "sfsdp/kernels/pointwise_kernel.h"
#include "sfsdp/kernels/rms_norm_kernel.h"
#include "sfsdp/kernels/rope_kernel.h"
#include "sfsdp/kernels/sum_squares_kernel.h"

namespace sfsdp::kernels {
namespace {

void exp_some(const float* x, float* to, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, exp(load(x + i)));
}

Family family_named(const char* name) {
  return {.name = name,
#ifdef SFSDP_DOT
          .attend = &attention_forward_of_any,
          .attend_backward = &attention_backward_of_any,
#else
          .attend = &attention_forward,
          .attend_backward = &attention_backward,
#endif
          .cross_entropy = &cross_entropy_forward,
          .cross_entropy_parts = &cross_entropy_parts_some,
          .cross_entropy_backward = &cross_entropy_grad,
          .rms_norm = &norm_forward,
          .rms_norm_backward = &norm_grad,
          .sum_squares = &squares_sum,
          .adam = &adam_update,
          .embedding_row = &embedding_sum,
          .rope = &rope_some,
          .pointwise = &pointwise_some,
          .exp = &exp_some};
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

// SPDX-License-Identifier: BSD-3-Clause
// All arithmetic of a family of processors: included once in each family_*.cc, after everything else; see vector.h.
// NOLINTBEGIN
#include "sfsdp/kernels/vector.h"

#include "sfsdp/kernels/small_product.h"

#include "sfsdp/kernels/attention_kernel.h"
#include "sfsdp/kernels/cross_entropy_kernel.h"

namespace sfsdp::kernels {
namespace {

Family family_named(const char* name) {
  return {name, &attention_forward, &attention_backward, &cross_entropy_forward, &cross_entropy_grad};
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

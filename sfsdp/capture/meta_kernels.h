// SPDX-License-Identifier: BSD-3-Clause
// Shape functions on meta tensors for the ops that have none in LibTorch's C++ (Python has its own).
#pragma once

#include <string>
#include <vector>

namespace sfsdp::capture {

// Registers each one that the running LibTorch lacks. Also routes scaled_dot_product_attention of meta tensors to the
// kernel that the target (cpu) will use. Calls after the first do nothing.
void register_meta_kernels();

// While it lives, scaled_dot_product_attention is traced as itself, for programs that run on other devices.
class WholeAttention {
 public:
  WholeAttention();
  ~WholeAttention();
  WholeAttention(const WholeAttention&) = delete;
  WholeAttention& operator=(const WholeAttention&) = delete;
};

// "aten::relu", …: every op that this file knows, for the test that fuzzes each against the real kernel.
std::vector<std::string> meta_kernel_names();

}  // namespace sfsdp::capture

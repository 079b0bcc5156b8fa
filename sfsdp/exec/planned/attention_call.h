// SPDX-License-Identifier: BSD-3-Clause
// An attention op by sfsdp's own kernel (kernels/attention.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/kernels/attention.h"

namespace sfsdp::exec {

class AttentionCall {
 public:
  //   op: sdpa or sdpa_backward with attention_kernel=sfsdp.flash; must outlive the call
  explicit AttentionCall(const ir::Op& op);

  // Where result `index` is to be written from now on. Returns whether it will be: else run() returns another tensor.
  //   place: of the op's type; must not overlap what the op reads
  bool write_to(size_t index, const at::Tensor& place);
  std::vector<at::Tensor> run(std::span<const at::Tensor> operands) const;

 private:
  const ir::Op& op_;
  bool backward_;
  kernels::AttentionShape shape_;
  std::vector<at::Tensor> places_;  // by result; undefined: a new tensor
};

}  // namespace sfsdp::exec

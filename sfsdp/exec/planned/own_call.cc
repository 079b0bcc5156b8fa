// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/own_call.h"

#include <ATen/Functions.h>

#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/planned/attention_call.h"
#include "sfsdp/exec/planned/cross_entropy_call.h"

namespace sfsdp::exec {

bool OwnCall::write_to(size_t index, const at::Tensor& place) {
  if (!can_write(index, place)) return false;
  places_[index] = place;
  return true;
}

std::vector<at::Tensor> OwnCall::results() const {
  std::vector<at::Tensor> results = places_;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].defined()) continue;
    const ir::Type& type = op_.result(static_cast<int>(i))->type();
    const auto options = at::TensorOptions(capture::scalar_type_of(type.dtype));
    results[i] = type.strides.empty() ? at::empty(type.shape(), options)
                                      : at::empty_strided(type.shape(), type.strides, options);
  }
  return results;
}

std::unique_ptr<OwnCall> make_own_call(const ir::Op& op) {
  if (op.attr_or<std::string>("attention_kernel", "") == "sfsdp.flash") return std::make_unique<AttentionCall>(op);
  if (op.attr_or<std::string>("row_kernel", "") == "sfsdp.rows") return std::make_unique<CrossEntropyCall>(op);
  return nullptr;
}

}  // namespace sfsdp::exec

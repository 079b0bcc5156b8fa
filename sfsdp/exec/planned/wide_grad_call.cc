// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/wide_grad_call.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/kernels/embedding.h"

namespace sfsdp::exec {
namespace {

// What a product makes at a time stays in the caches until it is cast, and is large enough for LibTorch's kernel.
constexpr int64_t kElementsAtATime = int64_t{1} << 20;

}  // namespace

// grad [..., n], x [..., k] -> [n, k]
std::span<at::Tensor> WideProductCall::run(std::span<const at::Tensor> operands, const StepScalars& /*scalars*/) {
  const std::span<at::Tensor> results = this->results();
  const int64_t n = results[0].size(0), k = results[0].size(1);
  const at::Tensor grad = operands[0].reshape({-1, n}).t(), x = operands[1].reshape({-1, k});
  const int64_t most = std::clamp<int64_t>(kElementsAtATime / std::max<int64_t>(k, 1), 64, std::max<int64_t>(n, 64));
  const at::Tensor space = at::empty({std::min(most, n), k}, x.options());
  for (int64_t begin = 0; begin < n; begin += most) {
    const int64_t count = std::min(most, n - begin);
    at::Tensor rows = space.narrow(0, 0, count);
    at::mm_out(rows, grad.narrow(0, begin, count), x);
    results[0].narrow(0, begin, count).copy_(rows);
  }
  return results;
}

EmbeddingPartCall::EmbeddingPartCall(const ir::Op& op, const Groups& groups)
    : OwnCall(op), own_(own_classes(op, groups, op.operands[0]->type().shape()[0])) {}

// w [rows, width], ids [...]
std::span<at::Tensor> EmbeddingPartCall::run(std::span<const at::Tensor> operands, const StepScalars& /*scalars*/) {
  const std::span<at::Tensor> results = this->results();
  look_up(operands[0].contiguous(), operands[1].contiguous(), own_, results[0]);
  return results;
}

EmbeddingGradCall::EmbeddingGradCall(const ir::Op& op, const ir::Op& embedding, const Groups& groups)
    : OwnCall(op),
      padding_(embedding.attr_or("padding_idx", int64_t{-1})),
      own_(own_classes(embedding, groups, op.result()->type().shape()[0])) {}

// grad [..., width], ids [...]
std::span<at::Tensor> EmbeddingGradCall::run(std::span<const at::Tensor> operands, const StepScalars& /*scalars*/) {
  const std::span<at::Tensor> results = this->results();
  const at::Tensor grad = operands[0].contiguous(), ids = operands[1].contiguous();
  kernels::EmbeddingGrad call;
  call.rows = ids.numel();
  call.width = results[0].size(1);
  call.num_weights = results[0].size(0);
  call.first = own_.first;
  call.whole = own_.whole;
  call.padding = padding_;
  call.ids = ids.const_data_ptr<int64_t>();
  call.grad = grad.const_data_ptr();
  call.grad_dtype = capture::dtype_of(grad.scalar_type());
  call.out = results[0].mutable_data_ptr();
  call.out_dtype = capture::dtype_of(results[0].scalar_type());
  check_ids({call.ids, static_cast<size_t>(call.rows)}, own_);
  kernels::embedding_backward(call, order_);
  return results;
}

}  // namespace sfsdp::exec

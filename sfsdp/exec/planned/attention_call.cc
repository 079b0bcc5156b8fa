// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/attention_call.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/exec/sequence.h"
#include "sfsdp/kernels/of_op.h"

namespace sfsdp::exec {
namespace {

kernels::Heads heads_of(const at::Tensor& t) { return {t.data_ptr(), t.stride(0), t.stride(1), t.stride(2)}; }

}  // namespace

AttentionCall::AttentionCall(const ir::Op& op, const Groups& groups) : OwnCall(op), backward_(op.is("sdpa_backward")) {
  const auto shape = kernels::attention_of(op);
  SFSDP_CHECK(shape, op.opcode, " %", op.result()->name(), " is not what sfsdp.flash computes");
  shape_ = *shape;
  if (!shape_.is_part) return;
  PartPositions part = positions_of_part(op, groups);
  positions_ = std::move(part.queries);
  if (!op.has_attr("shift")) return;
  key_positions_ = std::move(part.keys);
  shape_.length = part.length;
}

bool AttentionCall::can_write(size_t index, const at::Tensor& place) const {
  const bool is_log_sum = !backward_ && index == 1;
  return is_log_sum || place.stride(-1) == 1;
}

std::span<at::Tensor> AttentionCall::run(std::span<const at::Tensor> operands, const StepScalars& /*scalars*/) {
  const std::span<at::Tensor> results = this->results();
  // What is made contiguous here lives until the kernel is done.
  const size_t query = backward_ ? 1 : 0, documents = backward_ ? 6 : 3;
  const at::Tensor q = by_row(operands[query]), k = by_row(operands[query + 1]), v = by_row(operands[query + 2]);
  const at::Tensor out = backward_ ? by_row(operands[4]) : results[0], log_sum = backward_ ? operands[5] : results[1];
  at::Tensor grad, of;
  if (operands.size() > documents && operands[documents].defined()) of = operands[documents].contiguous();
  kernels::Attention attention = {
      .shape = shape_,
      .query = heads_of(q),
      .key = heads_of(k),
      .value = heads_of(v),
      .documents = of.defined() ? of.const_data_ptr<int64_t>() : nullptr,
      .out = heads_of(out),
      .log_sum = {log_sum.data_ptr<float>(), log_sum.stride(0), log_sum.stride(1), log_sum.stride(2)},
      .grad_out = {},
      .grad_query = {},
      .grad_key = {},
      .grad_value = {}};
  std::ranges::copy(positions_, attention.positions);
  std::ranges::copy(key_positions_, attention.key_positions);
  if (backward_) {
    grad = by_row(operands[0]);
    attention.grad_out = heads_of(grad);
    attention.grad_query = heads_of(results[0]);
    attention.grad_key = heads_of(results[1]);
    attention.grad_value = heads_of(results[2]);
  }
  at::parallel_for(0, kernels::units_of(shape_), 1, [&](int64_t begin, int64_t end) {
    backward_ ? kernels::attend_backward(attention, begin, end) : kernels::attend(attention, begin, end);
  });
  return results;
}

}  // namespace sfsdp::exec

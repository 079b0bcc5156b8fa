// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/bound_call.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "sfsdp/exec/pack_into.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::exec {
namespace {

int64_t bytes_of(std::span<const at::Tensor> tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& t : tensors) bytes += static_cast<int64_t>(t.nbytes());
  return bytes;
}

}  // namespace

void BoundCall::bind(const std::vector<at::Tensor>& place, const std::vector<bool>& moves) {
  for (size_t i = 0; i < reads.size(); ++i) {
    operands.emplace_back();
    if (!reads[i]) continue;
    const at::Tensor& at = place[reads[i]->id()];
    if (moves[reads[i]->id()] || !at.defined() || (reads_memory() && (at.is_conj() || at.is_neg())))
      late.push_back(i);
    else
      operands[i] = at;
  }
  is_done = call && late.empty() && ir::aliased_operand(*op) >= 0 &&
            std::ranges::all_of(results, [&](const ir::Value* result) { return place[result->id()].defined(); });
  if (canonical) canonical->bind(operands);
}

// beta 0: the first of several micro-batches, or the only one.
void BoundCall::accumulate(ir::Part part, int64_t micro_batches) {
  if (ir::beta_in(part) == 0 || micro_batches == 1)
    out.copy_(operands[0]);
  else
    out.add_(operands[0]);
}

std::span<at::Tensor> BoundCall::run(const StepScalars& scalars, DataPosition position, ir::Part part,
                                     int64_t micro_batches, plan::CopiedBytes& copied) {
  if (canonical) return canonical->run(operands, scalars, position);
  if (own) return own->run(operands, scalars);
  if (packs) {
    copied.in += pack_into(*op, operands, out);
  } else if (!call) {
    accumulate(part, micro_batches);
  } else if (out.defined()) {
    call->run_into(operands, {&out, 1});
    if (!is_checked_) check_results({&out, 1}, *op);  // the same tensor from then on
    is_checked_ = true;
  } else {
    given_ = call->run(operands, scalars, position);
    check_results(given_, *op);
    if (op->is("pack")) copied.in += bytes_of(operands);
    if (op->is("unpack")) copied.out += bytes_of(given_);
    return given_;
  }
  return {};
}

}  // namespace sfsdp::exec

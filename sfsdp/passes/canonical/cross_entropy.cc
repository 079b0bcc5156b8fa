// SPDX-License-Identifier: BSD-3-Clause
// torch::cross_entropy of rows with class numbers, and its gradient. Left alone: class weights, label smoothing, a loss of
// probabilities, one for each token, logarithms of probabilities that something else reads too.
#include "sfsdp/passes/canonical/proposals.h"
#include "sfsdp/passes/canonical/walk.h"

namespace sfsdp::passes {

std::vector<Proposal> propose_cross_entropy(ir::Op* op, const OpFinder&) {
  const bool backward = op->is("aten.nll_loss_backward");
  if (!backward && !op->is("aten.nll_loss_forward")) return {};
  const size_t first = backward ? 1 : 0;
  const ir::Op* log_p = made_by(op->operands[first], "aten._log_softmax");
  if (!log_p || op->operands[first + 2]) return {};
  ir::Value *wide = log_p->operands[0], *targets = op->operands[first + 1];
  std::vector<Proposal> proposals;
  const auto propose = [&](ir::Value* logits) {
    Proposal p{backward ? "cross_entropy_backward" : "cross_entropy", {logits, targets}, op->attrs};
    if (backward) p.operands = {op->operands[0], logits, targets, op->operands[4], log_p->result()};
    const ir::DType dtype = wide->type().dtype;
    if (ir::is_half(dtype)) p.attrs["in_dtype"] = true;
    proposals.push_back(std::move(p));
  };
  propose(before_widening(wide));
  if (before_widening(wide) != wide) propose(wide);
  return proposals;
}

}  // namespace sfsdp::passes

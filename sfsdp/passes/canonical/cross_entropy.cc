// SPDX-License-Identifier: BSD-3-Clause
// torch::cross_entropy of rows with class numbers, and its gradient. Left alone: class weights, label smoothing, a loss of
// probabilities, one for each token.
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
    if (backward)
      proposals.push_back({"cross_entropy_backward", {op->operands[0], logits, targets, op->operands[4]}, op->attrs});
    else
      proposals.push_back({"cross_entropy", {logits, targets}, op->attrs});
  };
  propose(before_widening(wide));
  if (before_widening(wide) != wide) propose(wide);
  return proposals;
}

}  // namespace sfsdp::passes

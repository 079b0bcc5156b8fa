// SPDX-License-Identifier: BSD-3-Clause
// torch::dropout, and its gradient. Left alone: a mask of another shape than x, one that is drawn in another module than it is
// used in (the counter is of a module), one that is read twice, alpha dropout, rates that learn.
#include "sfsdp/passes/canonical/proposals.h"
#include "sfsdp/passes/canonical/walk.h"

namespace sfsdp::passes {

std::vector<Proposal> propose_dropout(ir::Op* op, const OpFinder&) {
  std::vector<Proposal> proposals;
  if (!op->is("aten.mul.Tensor")) return proposals;
  for (const size_t i : {1u, 0u}) {
    ir::Value *mask = op->operands[i], *x = op->operands[1 - i];
    const ir::Op* scaled = made_by(mask, "aten.div.Scalar");
    const ir::Op* draw = scaled ? made_by(scaled->operands[0], "aten.bernoulli.p") : nullptr;
    if (!draw || !draw->has_attr("p") || draw->module_path != op->module_path) continue;
    ir::Emitter::Attributes attrs = draw->attrs;
    const ir::Attr keep = attrs.at("p");
    attrs.erase("p");
    attrs["keep"] = keep;
    proposals.push_back({"dropout", {x}, attrs});
    if (op->section == ir::Section::Bwd) proposals.push_back({"dropout_backward", {x, mask}, {{"keep", keep}}});
  }
  return proposals;
}

}  // namespace sfsdp::passes

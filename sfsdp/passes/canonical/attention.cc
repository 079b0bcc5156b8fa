// SPDX-License-Identifier: BSD-3-Clause
// Attention within documents: a mask that is made of their numbers, as models/documents.h makes it. Left alone: masks of finite
// numbers, of other conditions, or that something else reads too; the attention is then one with a mask (renamed.cc).
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/canonical/proposals.h"
#include "sfsdp/passes/canonical/walk.h"

namespace sfsdp::passes {
namespace {

using ir::Op, ir::Value;

// The value before dimensions of size 1 were put in, or itself.
Value* before_unsqueeze(Value* value) {
  while (value && value->producer()->is("aten.unsqueeze")) value = value->producer()->operands[0];
  return value;
}

// The documents [B, S] that a mask may be made of; nullptr: none.
Value* documents_of(const Value* mask) {
  const Op* where = made_by(mask, "aten.where.self");
  const Op* tril = where ? made_by(before_unsqueeze(where->operands[0]), "aten.tril") : nullptr;
  const Op* same = tril ? made_by(tril->operands[0], "aten.eq.Tensor") : nullptr;
  return same ? before_unsqueeze(same->operands[0]) : nullptr;
}

}  // namespace

std::vector<Proposal> propose_attention(ir::Op* op, const OpFinder&) {
  const bool backward = op->is("aten._scaled_dot_product_flash_attention_for_cpu_backward");
  if ((!backward && !op->is("aten._scaled_dot_product_flash_attention_for_cpu")) || ir::is_random(*op)) return {};
  const size_t at = backward ? 6 : 3;
  if (op->operands.size() <= at) return {};
  Value* documents = documents_of(op->operands[at]);
  if (!documents) return {};
  Proposal p{backward ? "sdpa_backward" : "sdpa", op->operands, op->attrs};
  p.operands[at] = documents;
  p.attrs["documents"] = true;
  p.attrs["is_causal"] = true;
  return {p};
}

}  // namespace sfsdp::passes

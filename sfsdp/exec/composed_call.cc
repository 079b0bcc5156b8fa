// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/composed_call.h"

#include <unordered_map>

#include "sfsdp/ir/canonical/decompose.h"

namespace sfsdp::exec {

ComposedCall::ComposedCall(const ir::Op& op) {
  const ir::Graph body = ir::decomposed(op);
  std::unordered_map<const ir::Value*, size_t> slot_of;
  const auto slot = [&](const ir::Value* value) {
    return value ? slot_of.try_emplace(value, slot_of.size()).first->second : kAbsent;
  };
  size_t input = 0;
  for (const ir::Value* operand : op.operands)
    operand_slots_.push_back(operand ? slot(body.ops()[input++]->result()) : kAbsent);
  for (size_t i = input; i < body.ops().size(); ++i) {
    const ir::Op& part = *body.ops()[i];
    parts_.push_back({AtenCall(part), {}, {}, {}});
    for (const ir::Value* operand : part.operands) parts_.back().operands.push_back(slot(operand));
    for (const auto& result : part.results()) parts_.back().results.push_back(slot(result.get()));
  }
  size_t output = 0;
  for (const auto& result : op.results())
    result_slots_.push_back(result->type().kind == ir::Type::Kind::Token ? kAbsent : slot(body.outputs[output++]));
  slots_ = slot_of.size();
  std::vector<bool> is_read(slots_, false);  // by a part further down, or outside
  for (const size_t s : result_slots_)
    if (s != kAbsent) is_read[s] = true;
  for (size_t i = parts_.size(); i-- > 0;)
    for (const std::vector<size_t>* slots : {&parts_[i].results, &parts_[i].operands})
      for (const size_t s : *slots)
        if (s != kAbsent && !is_read[s]) {
          is_read[s] = true;
          parts_[i].dead_after.push_back(s);
        }
}

std::vector<at::Tensor> ComposedCall::run(std::span<const at::Tensor> operands) const {
  std::vector<at::Tensor> slots(slots_);
  for (size_t i = 0; i < operand_slots_.size(); ++i)
    if (operand_slots_[i] != kAbsent) slots[operand_slots_[i]] = operands[i];
  for (const Part& part : parts_) {
    std::vector<at::Tensor> in;
    for (const size_t s : part.operands) in.push_back(s == kAbsent ? at::Tensor() : slots[s]);
    std::vector<at::Tensor> out = part.call.run(in);
    for (size_t i = 0; i < out.size(); ++i) slots[part.results[i]] = std::move(out[i]);
    in.clear();
    for (const size_t s : part.dead_after) slots[s] = at::Tensor();
  }
  std::vector<at::Tensor> results;
  for (const size_t s : result_slots_) results.push_back(s == kAbsent ? at::Tensor() : slots[s]);
  return results;
}

}  // namespace sfsdp::exec

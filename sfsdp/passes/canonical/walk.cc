// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/canonical/walk.h"

#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {

using ir::Op, ir::Value;

Op* made_by(const Value* value, const char* opcode) {
  return value && value->producer()->is(opcode) ? value->producer() : nullptr;
}

Value* other_operand(const Op& op, const Value* one) { return op.operands[op.operands[0] == one ? 1 : 0]; }

Value* before_widening(Value* wide) {
  const Op* copy = made_by(wide, "aten._to_copy");
  if (!copy || wide->type().dtype != ir::DType::f32) return wide;
  const ir::DType dtype = copy->operands[0]->type().dtype;
  return ir::is_half(dtype) ? copy->operands[0] : wide;
}

Value* before_reshape(Value* value) {
  const Op& op = *value->producer();
  const bool same = ir::has_flag(op, ir::kReshape) && op.operands[0]->type().numel() == value->type().numel();
  return same ? op.operands[0] : value;
}

}  // namespace sfsdp::passes

// SPDX-License-Identifier: BSD-3-Clause
// Steps from a value to what it was made of.
#pragma once

#include "sfsdp/ir/graph.h"

namespace sfsdp::passes {

// The producer of `value` if it is `opcode`; nullptr otherwise.
ir::Op* made_by(const ir::Value* value, const char* opcode);
// The operand that is not `one` of an op of two operands.
ir::Value* other_operand(const ir::Op& op, const ir::Value* one);
// What `wide` is an f32 copy of in half precision, or itself.
ir::Value* before_widening(ir::Value* wide);
// What `value` is a view of with the same elements in the same order, or itself.
ir::Value* before_reshape(ir::Value* value);

}  // namespace sfsdp::passes

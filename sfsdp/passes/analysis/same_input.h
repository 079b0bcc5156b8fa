// SPDX-License-Identifier: BSD-3-Clause
// Which products read one and the same activation.
#pragma once

#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::passes {

// The value whose elements `value` shows in the same order, through views of contiguous memory.
ir::Value* shown_value(ir::Value* value);

// Groups of at least two ops `opcode` of one section whose operand `operand` shows the same value, each in the graph's order.
//   operand: -1: the last one
std::vector<std::vector<ir::Op*>> ops_of_one_input(const ir::Graph& graph, const char* opcode, int operand);

}  // namespace sfsdp::passes

// SPDX-License-Identifier: BSD-3-Clause
// How partition says what lies how, and why it goes no further.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/parallel/tensor_parallel.h"

namespace sfsdp::parallel {

std::string text_of(const ir::Placement& placement);  // "cut in dimension 1"

// The op reads what is cut, and nothing says how it may be cut.
//   operand:     which one, that lies as `placement`
//   by_sequence: sequence parallelism is on, which cuts rows too
//   constraint:  nullptr, or what has made the operand lie so
[[noreturn]] void throw_no_rule(const ir::Op& op, size_t operand, const ir::Placement& placement,
                                const std::string& axis, bool by_sequence, const Constraint* constraint);

// Where the op takes equal parts of a dimension that is cut in one range: how many blocks a rule had better name; "": it does not.
std::string cure_by_blocks(const ir::Op& op, const ir::Placement& placement);

// Ranges of what a rule cuts in blocks, in its last dimension, are whole blocks.
//   throws: UserError naming op and module path where they are not
void check_blocks(const ir::Op& op, const std::vector<ir::Placement>& operands, const MeshAxis& axis);

// What a rank has of its experts alone is stored so: nothing gathers it.
//   reader: nullptr: the step
//   throws: UserError naming both where the value is of such, under views and casts
void check_no_expert(const std::string& axis, const ir::Value& value, const ir::Op* reader);

}  // namespace sfsdp::parallel

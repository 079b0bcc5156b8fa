// SPDX-License-Identifier: BSD-3-Clause
// How passes see that a value is a parameter, and which block of the model it belongs to.
#pragma once

#include <string>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/index.h"

namespace sfsdp::passes {

// Whether the op is a parameter's own cast, gather or narrow, which make it readable and compute nothing.
bool is_materialisation(const ir::Op& op);

// The param op that `value` is, or is materialised from; nullptr for all other values.
const ir::Op* param_of(const ir::Value* value);

// The param whose gradient `value` becomes, reduced and added up on its way; nullptr: none, or several.
const ir::Op* param_of_gradient(const ir::Graph& graph, const ir::Index& index, const ir::Value* value);

}  // namespace sfsdp::passes

// SPDX-License-Identifier: BSD-3-Clause
// How passes see that a value is a parameter, and which block of the model it belongs to.
#pragma once

#include <string>
#include <unordered_map>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/index.h"

namespace sfsdp::passes {

// Whether the op is a parameter's own cast, gather or narrow, which make it readable and compute nothing.
bool is_materialisation(const ir::Op& op);

// The param op that `value` is, or is materialised from; nullptr for all other values.
const ir::Op* param_of(const ir::Value* value);

// The param ops of a graph by their name=.
using ParamNames = std::unordered_map<std::string, const ir::Op*>;
ParamNames params_by_name(const ir::Graph& graph);

// The param whose gradient `value` becomes, reduced, packed with others and added up on its way; nullptr: none, or several.
const ir::Op* param_of_gradient(const ParamNames& params, const ir::Index& index, const ir::Value* value);

}  // namespace sfsdp::passes

// SPDX-License-Identifier: BSD-3-Clause
// The facts of attributes.def, held against an op. What reads an attribute of a verified graph need not ask for its kind.
#pragma once

#include <vector>

#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

// Attributes of another kind than their row says, or on an op that has none of that name. `none` is a kind of its own.
std::vector<Diagnostic> check_attribute_kinds(const Op& op);

}  // namespace sfsdp::ir

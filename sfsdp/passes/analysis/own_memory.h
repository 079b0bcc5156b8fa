// SPDX-License-Identifier: BSD-3-Clause
// Values that a pass may not make one of, although they are equal.
#pragma once

#include <set>

#include "sfsdp/ir/graph.h"

namespace sfsdp::passes {

// Storages (ir::storage_of) that must stay apart from all others: a donated buffer is overwritten, and two carried
// values are updated separately from the next step on.
std::set<const ir::Value*> own_memory(const ir::Graph& graph);

}  // namespace sfsdp::passes

// SPDX-License-Identifier: BSD-3-Clause
// What:   of two pure ops that compute the same, keeps the first (common subexpressions, all_gathers too).
// Why:    capture and lowering repeat casts, views and gathers; each costs time, and a gather costs bytes.
// Needs:  to run before split_collectives: starts and waits are left alone.
// Leaves: no two mergeable ops with equal opcode, operands, attributes and types in one section.
// Source: value numbering, Cocke and Schwartz 1970; here one walk suffices, as the graph has no branches.
#pragma once

#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

// A weight that is gathered again in backward was meant to be freed in between (reshard_after_forward): ops of two sections
// are never merged.
bool merge_duplicates(ir::Graph& graph, PassContext& ctx);  // true: changed

}  // namespace sfsdp::passes

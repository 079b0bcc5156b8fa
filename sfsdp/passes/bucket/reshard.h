// SPDX-License-Identifier: BSD-3-Clause
// What:   units that are kept gathered between forward and backward are not gathered again: keep=true of params, and the
//         unit that forward reads last.
// Why:    where memory allows, a gather less; the unit that forward reads last is the first that backward reads.
// Needs:  params each by itself, gathered in forward and again in backward; keep= as wrap leaves it.
// Leaves: backward of kept params reads what forward gathered; keep=true on them.
// Source: FSDP2's reshard_after_forward; TorchTitan's fsdp_reshard_after_forward.
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

struct ReshardOptions {
  // Dropping the unit that forward reads last would free nothing: backward begins with it.
  bool keep_last = false;

  static const std::vector<Field<ReshardOptions>>& fields();
};

bool reshard(ir::Graph& graph, const ReshardOptions& options, PassContext& ctx);

}  // namespace sfsdp::passes

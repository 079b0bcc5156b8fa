// SPDX-License-Identifier: BSD-3-Clause
// Runs passes in order and trusts none of them: verifies behind each, and holds it to what it says it changed.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sfsdp/passes/registry.h"

namespace sfsdp::passes {

struct PassReport {
  std::string name;
  bool changed = false;
  Metrics metrics;  // the pass's own, and ops and collectives before and after
};

// throws: UserError if `graph` is broken to begin with; InternalError naming the pass that breaks it, or that changes
// the text and says it did not, or the other way round
std::vector<PassReport> run_passes(ir::Graph& graph, std::span<const PassCall> calls);

// "dead_code: changed; ops_before 12, ops_after 9, ops_removed 3"
std::string to_string(const PassReport& report);

}  // namespace sfsdp::passes

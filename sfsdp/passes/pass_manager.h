// SPDX-License-Identifier: BSD-3-Clause
// Runs passes in order and trusts none of them: verifies after each, and holds it to what it says it changed.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/passes/pass_call.h"
#include "sfsdp/passes/pass_report.h"

namespace sfsdp::passes {

// Sees the graph before the first pass (name "start") and after each pass, in order.
using PassObserver = std::function<void(const std::string& name, const ir::Graph& graph)>;

// After which passes the graph is verified and its text compared with what the pass says it changed. That is most of
// the time that passes take: 4 of 5 seconds for Llama 3 405B.
enum class Checks {
  EveryPass,
  RegisteredPasses,  // ours have their post-conditions and their tests
};

struct RunOptions {
  const plan::BucketLayouts* layout = nullptr;  // PassContext::layout of each pass
  PassObserver observer = {};
  Measure measure = {};  // before the first pass and after each, for the reports; unset: they say nothing of it
  Checks checks = Checks::EveryPass;
};

// throws: UserError if `graph` is broken before a pass that is checked; InternalError naming the pass that breaks it, or that changes
// the text and says it did not, or the other way round
std::vector<PassReport> run_passes(ir::Graph& graph, std::span<const PassCall> calls, const RunOptions& options = {});

}  // namespace sfsdp::passes

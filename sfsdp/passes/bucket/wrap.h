// SPDX-License-Identifier: BSD-3-Clause
// What:   says which parameters form a unit: attribute unit= of every param, what FSDP2 calls a parameter group. By name
//         (mode manual), or by what a step costs on a machine (auto: the paper's greedy rule; search: what
//         search_units finds, never slower than manual and auto).
// Why:    the collectives of a unit are merged by the pass bucket; one per parameter is mostly latency.
// Needs:  params with name=.
// Leaves: unit= on every param; in modes auto and search also keep= and reason=, in mode search what prefetch_gathers
//         and sink_waits read (schedule_attrs.h).
// Source: SimpleFSDP, arXiv:2411.00284, section on manual wrapping; TorchTitan's default groups.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

struct WrapOptions {
  // Module paths, `*` for one component; each module that matches is a unit, those in one bracket are one together:
  // "tok_embeddings, layers.*, [norm, output]". Parameters that match nothing form the unit "root". Empty: each module
  // with a number (layers.3, h.11), each module before the first of them, and all behind the last of them.
  std::string units = {};
  std::string mode = "manual";  // or "auto", "search"
  // Of modes auto and search.
  const cost::Machine* machine = nullptr;
  int64_t memory_bytes = 0;  // what a rank may use; 0: all of the machine's
  int64_t micro_batches = 1;
  bool choose_reshard = false;  // units may be kept gathered between forward and backward
};

// By unit: what made its parameters one, as `matches layers.*`, for people.
//   params: names of all parameters, in the graph's order before `bucket`
std::map<std::string, std::string> wrap_rules(const std::vector<std::string>& params, const WrapOptions& options);

// Throws UserError for a pattern that cannot be read or matches no parameter, for an unknown mode, and for one that
// needs a machine and has none.
bool wrap(ir::Graph& graph, const WrapOptions& options, PassContext& ctx);

}  // namespace sfsdp::passes

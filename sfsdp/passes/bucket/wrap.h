// SPDX-License-Identifier: BSD-3-Clause
// What:   says which parameters form a unit, by their names: attribute unit= of every param, what FSDP2 calls a parameter
//         group. Units chosen by cost are written by tune/ instead.
// Why:    the collectives of a unit are merged by the pass bucket; one per parameter is mostly latency.
// Needs:  params with name=.
// Leaves: unit= on every param.
// Source: SimpleFSDP, arXiv:2411.00284, section on manual wrapping; TorchTitan's default groups.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

struct WrapOptions {
  // Module paths, `*` for one component; each module that matches is a unit, those in one bracket are one together:
  // "tok_embeddings, layers.*, [norm, output]". Parameters that match nothing form the unit "root". Empty: each module
  // with a number (layers.3, h.11), each module before the first of them, and all after the last of them.
  std::string units = {};

  static const std::vector<Field<WrapOptions>>& fields();
};

// The unit of each param, by the param's name.
//   throws: UserError for a pattern that cannot be read or matches no parameter
std::map<std::string, std::string> units_by_name(const ir::Graph& graph, const WrapOptions& options);

// By unit: what made its parameters one, as `matches layers.*`, for people.
//   params: names of all parameters, in the graph's order before `bucket`
std::map<std::string, std::string> wrap_rules(const std::vector<std::string>& params, const WrapOptions& options);

//   throws: UserError as units_by_name
bool wrap(ir::Graph& graph, const WrapOptions& options, PassContext& ctx);

}  // namespace sfsdp::passes

// SPDX-License-Identifier: BSD-3-Clause
// What the blocks of a compiled model send over one axis.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::testing {

// The collectives over the axis alone that a micro-batch makes, by block: "2 bwd all_reduce, 2 fwd all_reduce".
inline std::map<std::string, std::string> collectives_by_block(const ir::Graph& graph, const std::string& axis) {
  std::map<std::string, std::map<std::string, int>> counts;
  for (const auto& op : graph.ops()) {
    const auto axes = ir::is_collective(*op) ? ir::axes_of(*op) : std::nullopt;
    if (axes != std::vector<std::string>{axis} || !ir::is_repeated(op->section)) continue;
    const bool backward = op->section == ir::Section::Bwd;
    ++counts[std::string(ir::block_of(op->module_path))][concat(backward ? "bwd " : "fwd ", ir::collective_kind(*op))];
  }
  std::map<std::string, std::string> texts;
  for (const auto& [block, kinds] : counts)
    for (const auto& [kind, count] : kinds) texts[block] += concat(texts[block].empty() ? "" : ", ", count, ' ', kind);
  return texts;
}

}  // namespace sfsdp::testing

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/draws.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::ir {

std::vector<std::pair<const Op*, Diagnostic>> check_draws(const Graph& graph) {
  using Key = std::tuple<std::string, int64_t, bool>;  // module path, stream, whether in backward
  std::vector<std::pair<const Op*, Diagnostic>> wrong;
  std::map<Key, const Op*> drawn;
  const auto report = [&](const Op& op, const Op& first, std::string_view expected) {
    wrong.push_back({&op,
                     {{},
                      concat(name_of(op), " draws the numbers of ", name_of(first)),
                      concat("expected ", expected, ", got stream=", op.attr<int64_t>("stream"), " in both")}});
  };
  const bool numbered =
      std::ranges::any_of(graph.ops(), [](const auto& op) { return is_aten(op->opcode) && op->has_attr("stream"); });
  for (const auto& op : graph.ops()) {
    const auto* stream = op->find_attr<int64_t>("stream");
    if (!stream) {
      if (numbered && is_random(*op))
        wrong.push_back({op.get(), {{}, concat(name_of(*op), " has no stream="), "expected one, as other ops have"}});
      continue;
    }
    if (*stream < 0 || *stream >= int64_t{1} << 32)
      wrong.push_back({op.get(), {{}, concat(name_of(*op), " has stream=", *stream), "expected 0 to 2^32 - 1"}});
    const bool again = op->section == Section::Bwd;
    const auto [first, is_new] = drawn.emplace(Key(op->module_path, *stream, again), op.get());
    if (!is_new) report(*op, *first->second, "another stream= in each op of a module");
    const auto before = again ? drawn.find(Key(op->module_path, *stream, false)) : drawn.end();
    if (before == drawn.end()) continue;
    const Op& forward = *before->second;
    if (op->opcode != forward.opcode || op->result()->type().shape() != forward.result()->type().shape())
      report(*op, forward, "the same op, of as many elements, where backward draws again");
  }
  return wrong;
}

}  // namespace sfsdp::ir

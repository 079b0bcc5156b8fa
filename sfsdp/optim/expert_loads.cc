// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/expert_loads.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::step {

std::vector<MixtureEnds> mixtures_of(const ir::Graph& graph) {
  std::vector<MixtureEnds> mixtures;
  for (const auto& op : graph.ops()) {
    if (op->section != ir::Section::Fwd || !op->is("aten._grouped_mm") || !op->operands[2] ||
        op->operands[1]->type().dims.size() != 3)
      continue;
    MixtureEnds mixture = {.ends = op->operands[2]};
    if (const ir::Op& own = *mixture.ends->producer(); own.is("own_ends")) {
      if (own.operands.size() > 1) continue;  // a later round's
      mixture = {own.operands[0], ir::axis_size(graph, *ir::axes_of(own)).value_or(1), own.attr_or<int64_t>("room", 0)};
    }
    if (std::ranges::find(mixtures, mixture.ends, &MixtureEnds::ends) == mixtures.end()) mixtures.push_back(mixture);
  }
  return mixtures;
}

void note_loads(ExpertLoads& loads, const MixtureEnds& mixture, std::span<const int32_t> ends) {
  const auto experts = static_cast<double>(ends.size()), all = static_cast<double>(ends.back());
  const size_t share = ends.size() / static_cast<size_t>(mixture.ranks);
  SFSDP_CHECK(share > 0, ends.size(), " experts on ", mixture.ranks, " ranks");
  int64_t most_tokens = 0, most_rows = 0;
  for (size_t e = 0; e < ends.size(); ++e) {
    const auto before = [&](size_t first) { return first == 0 ? 0 : ends[first - 1]; };
    most_tokens = std::max<int64_t>(most_tokens, ends[e] - before(e));
    if ((e + 1) % share == 0) most_rows = std::max<int64_t>(most_rows, ends[e] - before(e + 1 - share));
  }
  if (all > 0) {
    loads.tokens = std::max(loads.tokens, static_cast<double>(most_tokens) * experts / all);
    loads.rows = std::max(loads.rows, static_cast<double>(most_rows) * static_cast<double>(mixture.ranks) / all);
  }
  const int64_t rounds = mixture.room > 0 ? (most_rows + mixture.room - 1) / mixture.room : 1;
  loads.rounds = std::max({loads.rounds, rounds, int64_t{1}});
}

}  // namespace sfsdp::step

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/expert_cuts.h"

namespace sfsdp::parallel {

using ir::Op, ir::Placement;

std::optional<OpCut> expert_cut_of(const Op& op, const std::vector<Placement>& operands, int64_t offsets) {
  if (!op.is("aten._grouped_mm")) return std::nullopt;
  const Placement rows = Placement::rows(0, offsets), columns = Placement::rows(1, offsets),
                  groups = Placement::shard(0);
  OpCut way{.operands = std::vector<std::optional<Placement>>(operands.size()), .results = {}};
  if (op.operands[1]->type().dims.size() == 3) {
    if (operands[1] != groups) return std::nullopt;
    way.operands[0] = rows;
    way.operands[1] = groups;
    way.results = {rows};
    return way;
  }
  if (operands[0] != columns && operands[1] != rows) return std::nullopt;
  way.operands[0] = columns;
  way.operands[1] = rows;
  way.results = {groups};
  return way;
}

}  // namespace sfsdp::parallel

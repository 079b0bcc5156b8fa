// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/range_layouts.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/ranges.h"

namespace sfsdp::plan {
namespace {

using Kind = Layout::Kind;

}  // namespace

// A rank's sizes: a dimension of n in b blocks is b ranges of n / b, one of each block of the whole. What is taken or joined has to be
// such ranges, else a rank would have elements of a block that others have of another one.
std::optional<RowLayouts> range_layouts(const ir::Op& op, const std::vector<Layout>& operands) {
  if (std::ranges::find(operands, Kind::Cut, &Layout::kind) == operands.end()) return std::nullopt;
  const auto ranges = ir::ranges_of(op);
  if (!ranges) return std::nullopt;
  const auto dim = static_cast<int64_t>(ranges->dim);
  const auto is_cut = [&](const Layout& layout) { return layout.kind == Kind::Cut && layout.dim == dim; };
  const auto first = std::ranges::find_if(operands, is_cut);
  if (first == operands.end()) return std::nullopt;
  const auto size_of = [&](const ir::Value& value) { return value.type().dims[ranges->dim].size; };
  const int64_t block = size_of(*op.operands[static_cast<size_t>(first - operands.begin())]) / first->blocks;
  for (size_t k = 0; k < operands.size(); ++k) {
    if (!is_cut(operands[k]))
      return RowLayouts{{}, concat("operand ", k, " is ", to_text(operands[k]), " where others are cut in blocks")};
    if (size_of(*op.operands[k]) != block * operands[k].blocks)
      return RowLayouts{{}, concat("operand ", k, " is cut in other blocks than those of ", block)};
  }
  for (const Chunk& part : ranges->parts)
    if (block == 0 || part.length == 0 || part.offset % block != 0 || part.length % block != 0)
      return RowLayouts{{},
                        concat("a range of ", part.length, " from ", part.offset, " on is no whole blocks of ", block)};
  RowLayouts made;
  for (const auto& result : op.results()) {
    if (size_of(*result) % block != 0)
      return RowLayouts{{}, concat('%', result->name(), " is no whole blocks of ", block)};
    made.results.push_back({Kind::Cut, dim, -1, size_of(*result) / block});
  }
  return made;
}

}  // namespace sfsdp::plan

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/remat_budget.h"

#include <algorithm>
#include <unordered_map>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {
namespace {

int64_t work_of(const ir::Op& op, double flops_per_byte) {
  double work = cost::flops_of(op);
  for (const auto& result : op.results()) work += flops_per_byte * static_cast<double>(result->type().bytes());
  return std::max<int64_t>(static_cast<int64_t>(work), 1);
}

// From corner `from` of the block's trade-off to the next.
struct Saving {
  size_t block = 0, from = 0;
  int64_t bytes = 0;
  double bytes_per_work = 0;
};

}  // namespace

BlockValues pose(const std::vector<const ir::Value*>& own, const std::unordered_set<const ir::Value*>& needed,
                 double flops_per_byte) {
  BlockValues block{.problem = {}, .values = own};
  std::unordered_map<const ir::Value*, int> number;
  const ir::Op* last = nullptr;
  for (const ir::Value* value : own) {
    const ir::Op& op = *value->producer();
    if (&op != last) {
      std::vector<int> reads;
      for (const ir::Value* operand : op.operands) {
        if (!operand) continue;
        const auto found = number.find(ir::storage_of(operand));
        if (found != number.end()) reads.push_back(found->second);
      }
      block.problem.ops.push_back({work_of(op, flops_per_byte), std::move(reads)});
      last = &op;
    }
    number.emplace(value, static_cast<int>(number.size()));
    block.problem.values.push_back(
        {value->type().bytes(), static_cast<int>(block.problem.ops.size()) - 1, needed.contains(value)});
  }
  return block;
}

std::vector<const ir::Value*> choose_within_budget(std::span<const BlockValues> blocks, double budget) {
  SFSDP_CHECK(budget >= 0 && budget <= 1, "budget ", budget);
  std::vector<size_t> alike;                                     // the first block of the same problem
  std::vector<std::vector<CutPoint>> trade_offs(blocks.size());  // of such first blocks
  std::vector<Saving> savings;
  int64_t all = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    size_t first = 0;
    while (first < b && (alike[first] != first || blocks[first].problem != blocks[b].problem)) ++first;
    alike.push_back(first);
    if (first == b) trade_offs[b] = trade_off(blocks[b].problem);
    const std::vector<CutPoint>& points = trade_offs[first];
    all += points[0].bytes;
    for (size_t k = 0; k + 1 < points.size(); ++k) {
      const int64_t bytes = points[k].bytes - points[k + 1].bytes;
      savings.push_back(
          {b, k, bytes, static_cast<double>(bytes) / static_cast<double>(points[k + 1].work - points[k].work)});
    }
  }
  // Among equals the earlier block's: what is made again for a later one is there again while most is still kept.
  std::ranges::stable_sort(savings, std::greater<>(), &Saving::bytes_per_work);
  std::vector<size_t> corner(blocks.size());
  const double allowed = budget * static_cast<double>(all);
  int64_t kept = all;
  for (const Saving& saving : savings) {
    if (static_cast<double>(kept) <= allowed) break;
    SFSDP_CHECK(corner[saving.block] == saving.from, "block ", saving.block, " saves more by less out of order");
    corner[saving.block] = saving.from + 1;
    kept -= saving.bytes;
  }
  std::vector<const ir::Value*> again;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const CutPoint& point = trade_offs[alike[b]][corner[b]];
    for (size_t v = 0; v < blocks[b].values.size(); ++v)
      if (point.again[static_cast<size_t>(blocks[b].problem.values[v].op)]) again.push_back(blocks[b].values[v]);
  }
  return again;
}

}  // namespace sfsdp::passes

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/op_shape.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/access.h"

namespace sfsdp::cost {
namespace {

using ir::Op;

bool is_backward(const Op& op) { return op.opcode.ends_with("_backward"); }
bool is_convolution(const Op& op) { return op.is("aten.convolution", "aten.convolution_backward"); }

// An operand that is multiplied, by its access map: the sizes of its factors, those that are summed over too.
struct Multiplied {
  size_t index = 0;
  std::vector<ir::FactorUse> uses = {};

  bool has(const std::string& factor) const {
    return std::ranges::any_of(uses, [&](const ir::FactorUse& use) { return use.factor == factor; });
  }
  double summed() const {
    double size = 1;
    for (const ir::FactorUse& use : uses)
      if (use.mark == '+') size *= static_cast<double>(use.size);
    return size;
  }
  // What stays in the result, of the factors that the other operand has as well, or has not.
  double kept(const Multiplied& other, bool in_both) const {
    double size = 1;
    for (const ir::FactorUse& use : uses)
      if (use.mark != '+' && other.has(use.factor) == in_both) size *= static_cast<double>(use.size);
    return size;
  }
};

// First and last of those that a result is a sum of products of. Where that sum is over no dimension: of those that it reads.
//   factors: by result, then operand
std::pair<Multiplied, Multiplied> multiplied_for(const Op& op, std::vector<std::vector<ir::FactorUse>>& factors,
                                                 size_t result) {
  std::vector<Multiplied> read, summed;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    if (!op.operands[i]) continue;
    Multiplied operand{i, std::move(factors[result * op.operands.size() + i])};
    if (std::ranges::any_of(operand.uses, [](const ir::FactorUse& use) { return use.mark == '+'; }))
      summed.push_back(operand);
    if (!operand.uses.empty()) read.push_back(std::move(operand));
  }
  const std::vector<Multiplied>& found = summed.size() >= 2 ? summed : read;
  if (found.size() < 2) return {};
  return {found.front(), found.back()};
}

// Where there are more dimensions than maps are resolved for: |a| · |b| = |a · b| · k².
ProductShape unresolved_shape(const Op& op) {
  const auto numel = [](const ir::Value* value) { return static_cast<double>(value->type().numel()); };
  const double made = numel(op.result());
  return {.m = made, .k = made > 0 ? std::sqrt(numel(op.operands[0]) * numel(op.operands[1]) / made) : 0};
}

// Among how many ranks the groups are shared out; rows are taken to be spread evenly over all groups.
double ranks_of_groups(const ir::Op& grouped) {
  const ir::Value* ends = grouped.operands[2];
  if (!ends || !ends->producer()->is("own_ends")) return 1;
  return static_cast<double>(ends->producer()->operands[0]->type().numel()) /
         static_cast<double>(std::max<int64_t>(ends->type().numel(), 1));
}

// Its queries are the last `queries` ones: they attend to all but half of as many of the last `length` keys, where the mean is half of
// these; in a ring to all keys of each rank before it, where the mean is half of the ranks.
double last_of_mean(const Op& op, int64_t queries, double length) {
  if (op.has_attr("shift")) return op.attr<int64_t>("shift") == 0 ? 1 : 2;
  return 2 - std::min(1.0, static_cast<double>(queries) / length);
}

}  // namespace

Class class_of(const Op& op) {
  if (ir::is_root(op) || op.results().empty() || ir::aliased_operand(op) >= 0) return Class::Free;
  if (op.has_attr("inside") && packed_bytes(op) == 0) return Class::Free;
  const ir::OpRow* row = op.opcode.row();
  return row ? row->cost : Class::Alone;
}

bool is_inside(const Op& pack, size_t operand) {
  const auto* inside = pack.find_attr<std::vector<int64_t>>("inside");
  return inside && std::ranges::find(*inside, static_cast<int64_t>(operand)) != inside->end();
}

int64_t packed_bytes(const Op& pack) {
  int64_t bytes = pack.result()->type().bytes();
  for (size_t i = 0; i < pack.operands.size(); ++i)
    if (is_inside(pack, i)) bytes -= pack.operands[i]->type().bytes();
  return bytes;
}

ProductShape product_shape(const Op& op) {
  ProductShape s;
  if (is_convolution(
          op)) {  // as one product: output elements × weight elements of one output channel; transposed: of inputs
    const bool backward = is_backward(op), transposed = op.attr_or("transposed", false);
    const auto weight = op.operands[backward ? 2 : 1]->type().shape();
    const ir::Value* output = backward ? op.operands[0] : op.result();
    const ir::Value* input = op.operands[backward ? 1 : 0];
    s.m = static_cast<double>((transposed ? input : output)->type().numel());
    if (backward) {  // of the input and of the weight, as far as they are asked for
      const auto* mask = op.find_attr<std::vector<bool>>("output_mask");
      s.batch = mask && mask->size() >= 2 ? static_cast<double>((*mask)[0]) + static_cast<double>((*mask)[1]) : 2;
    }
    for (size_t d = 1; d < weight.size(); ++d) s.k *= static_cast<double>(weight[d]);
    return s;
  }
  if (op.is("aten._grouped_mm")) {  // each row, or each summand, belongs to one group: all groups are one product
    const auto left = op.operands[0]->type().shape(), right = op.operands[1]->type().shape();
    if (left.size() == 3) s.batch = static_cast<double>(left[0]);
    s.m = static_cast<double>(left[left.size() - 2]);
    s.k = static_cast<double>(left.back());
    s.n = static_cast<double>(right.back());
    (right.size() == 3 ? s.m : s.k) /= ranks_of_groups(op);
    return s;
  }
  // Products side by side (joined_*) are as wide, or in their sum as deep, as all of them: the last operand says so, or as many
  // first ones do.
  auto factors = ir::factors_of(op, *ir::map_of(op.opcode.row()));
  std::optional<size_t> before;
  s.m = 0;
  for (size_t result = 0; result < op.results().size(); ++result) {
    const auto [left, right] = multiplied_for(op, factors, result);
    if (left.uses.empty()) return unresolved_shape(op);
    if (before == left.index) continue;
    before = left.index;
    s.batch = right.kept(left, true);
    s.m += left.kept(right, false);
    s.n = right.kept(left, false);
    s.k = right.summed();
  }
  return s;
}

AttentionShape attention_shape(const Op& op) {
  AttentionShape s;
  s.backward = is_backward(op);
  const size_t q = s.backward ? 1 : 0;
  const auto query = op.operands[q]->type().shape(), key = op.operands[q + 1]->type().shape();
  SFSDP_CHECK(query.size() == 4 && key.size() == 4, op.opcode, " of ", query.size(), " dimensions");
  s.pairs = static_cast<double>(query[0] * query[1] * query[2] * key[2]);
  s.width = static_cast<double>(query[3]);
  s.length = static_cast<double>(key[2]);
  s.causal = op.attr_or("is_causal", false);
  // As if all documents had that many tokens: S / L of L². How many they have is known to the data alone.
  if (const auto tokens = static_cast<double>(op.attr_or<int64_t>("document_tokens", 0));
      tokens > 0 && tokens < s.length) {
    s.pairs *= tokens / s.length;
    s.length = tokens;
  }
  if (s.causal && op.has_attr("axis") && !op.attr_or("balanced", false))
    s.of_mean = last_of_mean(op, query[2], s.length);
  return s;
}

double flops_of(const Op& op) {
  const Class kind = class_of(op);
  if (kind == Class::Product) {
    const ProductShape s = product_shape(op);
    return 2 * s.batch * s.m * s.n * s.k;
  }
  if (kind != Class::Attention) return 0;
  // Two products of every pair forward, five backward; the masked half is not computed.
  const AttentionShape s = attention_shape(op);
  return (s.backward ? 10.0 : 4.0) * s.pairs * s.width * (s.causal ? 0.5 : 1.0);
}

}  // namespace sfsdp::cost

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/same_graphs.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::exported {
namespace {

using Positions = std::vector<size_t>;  // by the id of a value: the place of its op

Positions positions_of(const ir::Graph& graph) {
  Positions positions(graph.id_bound());
  for (size_t i = 0; i < graph.ops().size(); ++i)
    for (const auto& result : graph.ops()[i]->results()) positions[result->id()] = i;
  return positions;
}

bool same_value(const ir::Value* a, const ir::Value* b, const Positions& of_a, const Positions& of_b) {
  if (!a || !b) return a == b;
  return of_a[a->id()] == of_b[b->id()] && a->result_index() == b->result_index();
}

// Whole numbers may differ, and lists of as many.
bool same_but_numbers(const ir::Attr& a, const ir::Attr& b) {
  if (a == b) return true;
  if (std::holds_alternative<int64_t>(a)) return std::holds_alternative<int64_t>(b);
  const auto *numbers = std::get_if<std::vector<int64_t>>(&a), *others = std::get_if<std::vector<int64_t>>(&b);
  return numbers && others && numbers->size() == others->size();
}

// What differs between two ops at one place; "" for nothing.
std::string difference(const ir::Op& a, const ir::Op& b, const Positions& of_a, const Positions& of_b) {
  if (a.opcode != b.opcode) return concat("is ", ir::opcode_at(b));
  const auto same = [&](const ir::Value* x, const ir::Value* y) { return same_value(x, y, of_a, of_b); };
  if (!std::ranges::equal(a.operands, b.operands, same) || a.operand_lists != b.operand_lists ||
      a.results().size() != b.results().size())
    return "reads other values";
  if (a.attrs.size() != b.attrs.size()) return "has other arguments";
  for (const auto& [name, value] : a.attrs) {
    const auto other = b.attrs.find(name);
    if (other == b.attrs.end()) return concat("has no argument ", name);
    if (!same_but_numbers(value, other->second)) return concat("has ", name, " = ", other->second, ", not ", value);
  }
  for (size_t r = 0; r < a.results().size(); ++r) {
    const ir::Type &type = a.result(static_cast<int>(r))->type(), &other = b.result(static_cast<int>(r))->type();
    if (type.kind != other.kind || type.dtype != other.dtype || type.dims.size() != other.dims.size())
      return concat("gives ", other, ", not ", type);
  }
  return "";
}

[[noreturn]] void refuse(const std::string& what, const Sizes& sizes, size_t point) {
  throw UserError(
      concat("the forward takes another way at other sizes: ", what, "\n  at ", point_text(sizes, point),
             "; before, at ", point_text(sizes, 0),
             "\n  expected the same ops at all sizes; narrow the range, or let the size be fixed in the archive"));
}

}  // namespace

std::string point_text(const Sizes& sizes, size_t point) {
  std::vector<std::string> parts;
  for (size_t s = 0; s < sizes.symbols().size(); ++s)
    parts.push_back(concat(sizes.symbols()[s].name, " = ", sizes.points()[point][s]));
  return parts.empty() ? "the sizes of the example" : join(parts, ", ");
}

void check_same_ops(std::span<const ir::Graph> graphs, const Sizes& sizes) {
  SFSDP_CHECK(graphs.size() == Sizes::kPoints, graphs.size());
  const ir::Graph& first = graphs[0];
  const Positions of_first = positions_of(first);
  for (size_t g = 1; g < graphs.size(); ++g) {
    const Positions of_other = positions_of(graphs[g]);
    const auto ops = first.ops(), others = graphs[g].ops();
    for (size_t i = 0; i < std::min(ops.size(), others.size()); ++i)
      if (const std::string what = difference(*ops[i], *others[i], of_first, of_other); !what.empty())
        refuse(concat(ir::opcode_at(*ops[i]), " ", what), sizes, g);
    if (ops.size() != others.size()) refuse(concat(others.size(), " ops, not ", ops.size()), sizes, g);
    const auto same = [&](const ir::Value* x, const ir::Value* y) { return same_value(x, y, of_first, of_other); };
    if (!std::ranges::equal(first.outputs, graphs[g].outputs, same)) refuse("it returns other values", sizes, g);
    const auto same_carry = [&](const ir::Carry& x, const ir::Carry& y) {
      return same(x.current, y.current) && same(x.next, y.next);
    };
    if (!std::ranges::equal(first.carries, graphs[g].carries, same_carry)) refuse("it writes other buffers", sizes, g);
  }
}

}  // namespace sfsdp::exported

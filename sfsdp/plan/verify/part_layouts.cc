// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/part_layouts.h"

#include <algorithm>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::plan {
namespace {

using ir::Op;
using Kind = Layout::Kind;

// A value, and of which dimension a rank has the part of the rank `shift` before alone.
struct Part {
  Layout of;
  int64_t dim = -1, shift = 0;
};

// What is cut in the dimension alone is the own part of what is whole.
std::optional<Part> part_in(const Layout& layout, int64_t dim) {
  if (layout.part == dim) {
    Layout of = layout;
    of.part = -1;
    of.shift = 0;
    return Part{of, dim, layout.shift};
  }
  const bool is_own = layout.kind == Kind::Cut && layout.part < 0;
  if ((!is_own && layout.kind != Kind::Passed) || layout.dim != dim || layout.blocks != 1) return std::nullopt;
  return Part{{}, dim, layout.kind == Kind::Passed ? layout.shift : 0};
}

Layout layout_of(const Part& part) {
  if (part.of.kind == Kind::Whole)
    return {.kind = part.shift == 0 ? Kind::Cut : Kind::Passed, .dim = part.dim, .shift = part.shift};
  Layout layout = part.of;
  layout.part = part.dim;
  layout.shift = part.shift;
  return layout;
}

// What a part is of, on whichever rank: through what sends it.
const ir::Value* origin_of(const ir::Value* value) {
  while (value->producer()->is("wait") || ir::collective_kind(*value->producer()) == "permute")
    value = value->producer()->operands[0];
  return value;
}

// Whether two values are the same part of one computation, but for whose part each is.
bool is_same_part(const ir::Value* a, const ir::Value* b, int depth = 0) {
  constexpr int kDeepest = 8;  // sums of as many products, and views of weights
  if (!a || !b) return a == b;
  a = origin_of(a);
  b = origin_of(b);
  if (a == b) return true;
  const Op &one = *a->producer(), &other = *b->producer();
  ir::Attrs of_one = one.attrs, of_other = other.attrs;
  for (const char* how : {"shift", "kernel", "once", "donates", "product_kernel", "attention_kernel", "row_kernel"}) {
    of_one.erase(how);  // whose part it is, and by which kernel
    of_other.erase(how);
  }
  if (depth == kDeepest || one.opcode != other.opcode || one.operands.size() != other.operands.size() ||
      one.operands.empty() || of_one != of_other)
    return false;
  for (size_t k = 0; k < one.operands.size(); ++k)
    if (!is_same_part(one.operands[k], other.operands[k], depth + 1)) return false;
  return true;
}

// Why what is put together is no parts of one thing; "": it is.
std::string parts_of_several(const Op& op) {
  for (size_t i = 1; i < op.operands.size(); ++i)
    if (!is_same_part(op.operands[0], op.operands[i]))
      return concat("operands 0 and ", i, " are parts of different values");
  return "";
}

RowLayouts taken(const Op& op, const Layout& before) {
  const auto dim = op.attr<int64_t>("dim");
  const bool fits = before.part < 0 && (before.kind == Kind::Whole || (before.kind == Kind::Cut && before.dim != dim));
  if (!fits) return refused(concat("a part of what is ", to_text(before)));
  return {{layout_of({before, dim, op.attr<int64_t>("shift")})}, ""};
}

RowLayouts joined(const Op& op, const std::vector<Layout>& operands) {
  const auto dim = op.attr<int64_t>("dim");
  std::optional<Layout> whole;
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto part = part_in(operands[i], dim);
    if (!part || part->shift != static_cast<int64_t>(i))
      return refused(concat("operand ", i, " is ", to_text(operands[i]), ", and stands where the part of ",
                            i == 0 ? "the own rank" : concat("the rank ", i, " before"), " in dimension ", dim,
                            " does"));
    if (whole && *whole != part->of)
      return refused(
          concat("a part of what is ", to_text(part->of), " is joined with parts of what is ", to_text(*whole)));
    whole = part->of;
  }
  if (const std::string wrong = parts_of_several(op); !wrong.empty()) return refused(wrong);
  return {{*whole}, ""};
}

// The part's owner adds up all terms; that of the rank i before it is the term of what stands `ranks` - i before that.
RowLayouts sum_of_parts(const Op& op, const std::vector<Layout>& operands, int64_t ranks) {
  const Layout& own = operands.back();
  if (own.kind != Kind::Summand || own.part < 0 || own.shift != 0)
    return refused(concat("the last operand is ", to_text(own), ", and not a rank's term of its own part"));
  for (size_t i = 0; i + 1 < operands.size(); ++i) {
    const int64_t term = ranks - 1 - static_cast<int64_t>(i);
    const Layout expected = {.kind = Kind::Terms, .dim = own.part, .first = term, .last = term};
    if (operands[i] != expected)
      return refused(concat("operand ", i, " is ", to_text(operands[i]), ", where ", to_text(expected), " is added"));
  }
  if (const std::string wrong = parts_of_several(op); !wrong.empty()) return refused(wrong);
  return {{Layout{Kind::Cut, own.part}}, ""};
}

RowLayouts sent(const Op& op, const Layout& before, int64_t ranks) {
  if (ir::axes_of(op)->size() != 1) return refused("parts are sent over several axes");
  return {{{.kind = Kind::Terms,
            .dim = before.part,
            .shift = (before.shift + op.attr<int64_t>("shift")) % ranks,
            .first = before.shift,
            .last = before.shift}},
          ""};
}

// The product of these rows is that of all of them, of these alone. The last dimension of operand 0 holds no rows.
std::optional<RowLayouts> product(const Op& op, const std::vector<Layout>& operands, const std::vector<Layout>& named) {
  const Layout& rows = operands[0];
  const int64_t dim = rows.part >= 0 ? rows.part : rows.dim;
  if (dim < 0) return std::nullopt;
  const bool is_own = rows.kind == Kind::Cut && rows.part < 0;
  const auto is_whole = [](const Layout& layout) { return layout.kind == Kind::Whole; };
  if (is_own && std::all_of(operands.begin() + 1, operands.end(), is_whole)) return std::nullopt;
  const auto part = dim + 1 < std::ssize(op.operands[0]->type().dims) ? part_in(rows, dim) : std::nullopt;
  if (!part) return std::nullopt;
  std::vector<Layout> all = operands;
  all[0] = part->of;
  RowLayouts made = row_layouts(op, all, named);
  if (!made.wrong.empty()) return is_own ? std::nullopt : std::optional(made);
  const Layout& result = made.results[0];
  if (result.kind == Kind::Cut && result.dim == dim) return refused("the rows of a part are cut once more");
  return RowLayouts{{layout_of({result, dim, part->shift})}, ""};
}

}  // namespace

std::optional<RowLayouts> part_layouts(const Op& op, const std::vector<Layout>& operands,
                                       const std::vector<Layout>& named, bool here, int64_t ranks) {
  if (here && op.is("own_part") && op.has_attr("shift")) return taken(op, operands[0]);
  if (here && op.is("join_parts")) return joined(op, operands);
  if (here && op.is("add_parts")) return sum_of_parts(op, operands, ranks);
  if (here && ir::collective_kind(op) == "permute" && operands[0].kind == Kind::Summand && operands[0].part >= 0)
    return sent(op, operands[0], ranks);
  const auto is_alike = [&](const Layout& layout) { return layout == operands[0]; };
  if (op.is("join_parts", "add_parts"))  // of another axis's parts, which lie alike over this one
    return std::ranges::all_of(operands, is_alike) ? RowLayouts{{operands[0]}, ""}
                                                   : refused("parts that lie otherwise are put together");
  if (op.is("linear", "linear_dx"))
    if (auto made = product(op, operands, named)) return made;
  const auto is_part = [](const Layout& layout) { return layout.part >= 0; };
  if (std::ranges::none_of(operands, is_part)) return std::nullopt;
  if (op.is("wait")) return RowLayouts{{operands[0]}, ""};
  if (op.is("aten.add.Tensor") && !op.has_attr("alpha") && operands[0].kind == Kind::Summand &&
      std::ranges::all_of(operands, is_alike))
    return RowLayouts{{operands[0]}, ""};
  return refused(concat("what is ", to_text(*std::ranges::find_if(operands, is_part)), " is read as if it were all"));
}

}  // namespace sfsdp::plan

// SPDX-License-Identifier: BSD-3-Clause
// Shape rules of ops over a rank's part, or its range of rows, whose ends are in memory, and of exchanges between ranks.
#include "sfsdp/base/check.h"
#include "sfsdp/ir/shape_rules.h"

namespace sfsdp::ir {
namespace {

int64_t groups_of(RuleContext& context, const Type& ends) {
  const int64_t ranks = context.ranks();
  if (ends.dtype != DType::i32 || ends.dims.size() != 1 || ends.dims[0].size % ranks != 0)
    context.stop(concat("cannot share out groups that end at ", ends, " among ", ranks, " ranks"),
                 "expected one row of i32 whose size they divide");
  return ends.dims[0].size / ranks;
}

// How many rows a rank has at once, of so many.
int64_t room_of(RuleContext& context, int64_t rows) {
  if (!context.op.has_attr("room")) return rows;
  const int64_t room = context.integer("room");
  if (room < 1) context.stop(concat("has room=", room), "expected one row or more");
  return room;
}

// Operand `index`, the number of a round, if it is there.
void check_round(RuleContext& context, size_t index) {
  if (!context.has_operand(index)) return;
  if (!context.op.has_attr("room")) context.stop("counts rounds without room=", "expected how many rows a round has");
  context.expect_dtype(DType::i64, context.tensor(index, 0).dtype, "the round");
}

}  // namespace

void rule_own_rows(RuleContext& context) {
  context.dim();
  groups_of(context, context.operand(1));
  context.expect_like(0, context.operand());
}

void rule_own_ends(RuleContext& context) {
  check_round(context, 1);
  room_of(context, 0);
  context.expect_result({groups_of(context, context.operand())});
}

void rule_further_rounds(RuleContext& context) {
  groups_of(context, context.operand());
  context.integer("room");
  room_of(context, 0);
  context.expect(0, DType::i64, {});
}

void rule_permute(RuleContext& context) {
  context.expect_like(0, context.operand());
  const int64_t ranks = context.ranks(), shift = context.integer("shift");
  if (shift < 1 || shift >= ranks)
    context.report(concat("has shift=", shift, " over ", ranks, " ranks"), concat("expected 1 to ", ranks - 1));
}

void rule_own_part(RuleContext& context) {
  const size_t dim = context.dim();
  const int64_t ranks = context.ranks();
  Shape shape = context.operand().shape();
  if (shape[dim] % ranks != 0)
    context.stop(concat("cannot cut dimension ", dim, " of ", context.operand(), " into ", ranks),
                 "expected a size that the ranks divide");
  const int64_t shift = context.integer("shift", 0);
  if (shift < 0 || shift >= ranks)
    context.report(concat("has shift=", shift, " over ", ranks, " ranks"), concat("expected 0 to ", ranks - 1));
  shape[dim] /= ranks;
  context.expect_result(shape);
}

namespace {

// As many operands as the axis has ranks, all alike.
int64_t parts_of(RuleContext& context) {
  const int64_t ranks = context.ranks(), parts = std::ssize(context.op.operands);
  if (parts != ranks)
    context.stop(concat("has ", parts, " parts over ", ranks, " ranks"), "expected one for each rank");
  for (size_t k = 1; k < context.op.operands.size(); ++k) {
    context.expect_dtype(context.operand().dtype, context.operand(k).dtype, "a part");
    context.expect_shape(context.operand().shape(), context.operand(k), "a part");
  }
  return ranks;
}

}  // namespace

void rule_join_parts(RuleContext& context) {
  const size_t dim = context.dim();
  Shape shape = context.operand().shape();
  shape[dim] = saturating_product(shape[dim], parts_of(context));
  context.expect_result(shape);
}

void rule_add_parts(RuleContext& context) {
  parts_of(context);
  context.expect_like(0, context.operand());
}

void rule_all_to_all_v(RuleContext& context) {
  const int64_t ranks = context.ranks(), rows = context.integer("rows");
  groups_of(context, context.operand(2));
  const Type& index = context.tensor(1, 1);
  if (index.dtype != DType::i64 && index.dtype != DType::i32)
    context.stop(concat("is told by ", index, " which row is which"), "expected i64 or i32");
  const auto* to = context.op.find_attr<std::string>("to");
  if (!to || (*to != "rows" && *to != "parts")) context.stop("says no side", "expected to=rows or to=parts");
  if (context.operand().dims.empty()) context.stop("sends a number", "expected rows");
  const bool adds = context.flag("adds"), to_rows = *to == "rows";
  const int64_t indexes = index.dims[0].size, sent = adds ? indexes : rows, made = adds ? rows : indexes;
  const int64_t parted = to_rows ? sent : made;
  if (rows < 0 || parted % ranks != 0)
    context.stop(concat("cannot cut ", parted, " rows into ", ranks), "expected a number that the ranks divide");
  check_round(context, 3);
  Shape shape = context.operand().shape();
  shape[0] = to_rows ? sent / ranks : room_of(context, sent);
  context.expect_shape(shape, context.operand(), "what is sent");
  shape[0] = to_rows ? room_of(context, made) : made / ranks;
  context.expect_result(shape);
}

}  // namespace sfsdp::ir

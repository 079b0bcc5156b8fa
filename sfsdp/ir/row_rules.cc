// SPDX-License-Identifier: BSD-3-Clause
// Shape rules of ops over a rank's range of rows, whose ends are in memory.
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

}  // namespace

void rule_own_rows(RuleContext& context) {
  context.dim();
  groups_of(context, context.operand(1));
  context.expect_like(0, context.operand());
}

void rule_own_ends(RuleContext& context) { context.expect_result({groups_of(context, context.operand())}); }

}  // namespace sfsdp::ir

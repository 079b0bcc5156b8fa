// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/refusals.h"

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/model_axis.h"
#include "sfsdp/parallel/localise.h"

namespace sfsdp::parallel {

using Kind = ir::Placement::Kind;

std::string text_of(const ir::Placement& placement) {
  if (placement.kind == Kind::Shard)
    return concat("cut in dimension ", placement.dim,
                  placement.blocks == 1 ? "" : concat(", in ", placement.blocks, " blocks"));
  const bool is_summand = placement == ir::Placement::partial(ir::ReduceOp::Sum);
  return is_summand ? "a summand" : placement.kind == Kind::Rows ? "a rank's rows" : "whole";
}

void throw_no_rule(const ir::Op& op, size_t operand, const ir::Placement& placement, const std::string& axis,
                   bool by_sequence, const Constraint* constraint) {
  const std::string rule =
      is_token_axis(axis)
          ? "no axis " + axis
          : "no rule for the weights of " + (op.module_path.empty() ? std::string("this module") : op.module_path);
  throw UserError(concat(verb_of(axis), ir::opcode_at(op), " reads %", op.operands[operand]->name(), ", which is ",
                         text_of(placement), " over ", axis, constraint ? " by " + to_string(*constraint) : "",
                         ", and nothing says how this op may be cut\n  expected an access map in its row of ",
                         ir::is_aten(op.opcode) ? "sfsdp/ir/atenset.def" : "sfsdp/ir/opset.def", ", or ",
                         constraint ? "another placement" : rule,
                         by_sequence ? ", or none of sequence parallelism, which cuts rows too" : ""));
}

}  // namespace sfsdp::parallel

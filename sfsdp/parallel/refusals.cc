// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/refusals.h"

#include <algorithm>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/ranges.h"
#include "sfsdp/mesh/model_axis.h"
#include "sfsdp/parallel/localise.h"
#include "sfsdp/parallel/op_cuts.h"

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

std::string cure_by_blocks(const ir::Op& op, const ir::Placement& placement) {
  if (!ir::has_flag(op, ir::kTakesRanges) || placement.blocks > 1) return "";
  const auto ranges = ir::ranges_of(op);
  if (!ranges || placement.dim != static_cast<int64_t>(ranges->dim)) return "";
  const int64_t size = op.operands[0]->type().dims[ranges->dim].size, part = ranges->parts[0].length;
  const auto is_alike = [&](const Chunk& other) { return other.length == part; };
  if (part == 0 || size == part || size % part != 0 || !std::ranges::all_of(ranges->parts, is_alike)) return "";
  return concat("a rule for its weight with ", size / part, " blocks would leave it cut");
}

void check_blocks(const ir::Op& op, const std::vector<ir::Placement>& operands, const MeshAxis& axis) {
  if (!ir::has_flag(op, ir::kTakesRanges) || operands[0].kind != Kind::Shard || operands[0].blocks == 1) return;
  const auto ranges = ir::ranges_of(op);
  if (!ranges || ranges->dim + 1 != op.operands[0]->type().dims.size() ||
      operands[0].dim != static_cast<int64_t>(ranges->dim))
    return;
  const auto keeps = [&](const OpCut& way) { return way.operands[0] == operands[0]; };
  if (std::ranges::any_of(cuts_of(op, operands, axis.size), keeps)) return;
  std::vector<std::string> sizes;
  for (const Chunk& part : ranges->parts) sizes.push_back(std::to_string(part.length));
  const int64_t size = op.operands[0]->type().dims[ranges->dim].size;
  throw UserError(concat(verb_of(axis.name), ir::opcode_at(op), " takes ", join(sizes, " and "), " of the ", size,
                         " of %", op.operands[0]->name(), ", which a rule cuts in ", operands[0].blocks, " blocks of ",
                         size / operands[0].blocks, " over ", axis.name,
                         "\n  expected Shard with as many blocks as equal parts are taken; parts of several sizes, as "
                         "of fewer heads of keys, are "
                         "not cut yet: no rule for this weight, or a weight for each part"));
}

void check_no_expert(const std::string& axis, const ir::Value& value, const ir::Op* reader) {
  const ir::Op* op = value.producer();
  while (op->operands.size() == 1 &&
         (ir::has_flag(*op, ir::kReshape) || ir::has_flag(*op, ir::kPermute) || op->is("cast")))
    op = op->operands[0]->producer();
  if (!op->has_attr("box")) return;
  throw UserError(concat(verb_of(axis), reader ? ir::opcode_at(*reader) : "the step", " reads ",
                         op->attr<std::string>("name"), " of all experts, of which each rank of ", axis,
                         " has some\n  expected products of groups (_grouped_mm) alone to read it, or ",
                         "ExpertParallelOptions::experts without it"));
}

}  // namespace sfsdp::parallel

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/check.h"
#include "sfsdp/ir/lexer.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/verify/checks.h"

namespace sfsdp::ir::checks {
namespace {

// Runs once, after the region that micro-batches repeat.
bool after_region(Section section) { return section == Section::Clip || section == Section::Opt; }

// What stands above all sections runs before the first micro-batch is there.
void check_init(const Op& op, Report& report) {
  for (const Value* operand : op.operands)
    if (operand && (operand->producer()->section != Section::Init || operand->producer()->is("input")))
      report(concat(name_of(op), " in section init reads %", operand->name()),
             "expected a param, a state or a constant; move the op into section fwd");
}

void check_wait_section(const Op& op, const Op& start, Report& report) {
  // What starts before the first micro-batch is over for those after it.
  if (!is_start(start) || !is_repeated(op) || is_repeated(start) || start.section == Section::Init) return;
  report(concat(name_of(op), " waits in every micro-batch for ", name_of(start), ", which starts once"),
         "expected the start in forward, loss or backward, without once=true, or above all sections");
}

}  // namespace

void check_sections(const Op& op, Report& report) {
  if (op.has_attr("once") && (!is_once(op) || !is_repeated(op.section)))
    report(concat(name_of(op), " has once= in section ", to_string(op.section)),
           "expected once=true, in a section that micro-batches repeat");
  if (op.is("accumulate") && !is_repeated(op))
    report(concat(name_of(op), " adds up in section ", to_string(op.section)),
           "expected it in forward, loss or backward, in every micro-batch");
  if (op.section == Section::Init) check_init(op, report);
  if (is_wait(op)) check_wait_section(op, *op.operands[0]->producer(), report);
  if (!is_repeated(op.section)) return;
  for (const Value* operand : op.operands) {
    if (!operand) continue;
    if (is_once(*operand->producer()) && !is_once(op))
      report(concat(name_of(op), " reads %", operand->name(), ", which only the last micro-batch has"),
             "expected once=true here too, or a reader after backward");
    if (after_region(operand->producer()->section))
      report(concat(name_of(op), " in section ", to_string(op.section), " reads %", operand->name(), " of section ",
                    to_string(operand->producer()->section)),
             "expected a value of this step's forward or backward; what the optimizer leaves reaches the next step "
             "by a carry");
  }
}

void check_root(const Op& op, Known& known, Report& report) {
  if (!is_root(op)) return;
  if (op.section != Section::Init)
    report(concat(name_of(op), " stands in section ", to_string(op.section)), "expected it above all sections");
  const auto* name = op.find_attr<std::string>("name");
  if (name && !known.root_names.insert(*name).second)
    report(concat(name_of(op), " is the second with name=", quote_if_needed(*name)),
           "expected unique names among inputs, params and states");
}

void check_bwd_of(const Op& op, const Known& known, Report& report) {
  if (!op.bwd_of) return;
  if (!known.ops.contains(op.bwd_of))
    return report(concat(name_of(op), " is bwd_of an op that is not in the graph"), "expected an op above");
  if (op.bwd_of->results().empty())
    return report(concat(name_of(op), " is bwd_of ", op.bwd_of->opcode), "expected an op with a result to name it");
  const auto computes = [](const Op& o) { return !is_collective(o) && !is_wait(o); };
  if (!computes(op) || !computes(*op.bwd_of))  // collectives are moved by themselves, away from what they stand beside
    return report(concat(name_of(op), " is bwd_of ", name_of(*op.bwd_of)),
                  "expected both to compute: bwd_of= on an op of backward, naming the op of forward that it is the "
                  "gradient of");
  const Section section = op.bwd_of->section;
  if (!known.storage[op.bwd_of->result()] || (section != Section::Fwd && section != Section::Loss))
    report(concat(name_of(op), " is bwd_of ", name_of(*op.bwd_of), " in section ", to_string(section)),
           "expected an op above, in section fwd or loss");
}

}  // namespace sfsdp::ir::checks

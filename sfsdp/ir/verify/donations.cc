// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/verify/checks.h"

namespace sfsdp::ir::checks {
namespace {

void check_donation(const Op& op, const Value& operand, const Type& result, Known& known, Report& report) {
  if (operand.type().span_bytes() != result.span_bytes())
    report(concat(name_of(op), " donates %", operand.name(), " of ", operand.type().span_bytes(), " bytes"),
           concat("expected the ", result.span_bytes(), " bytes of ", result));
  const Value* storage = known.storage[&operand];
  const Op& owner = *storage->producer();
  if ((is_root(owner) || owner.is("constant")) && !known.carried.contains(storage))
    report(concat(name_of(op), " donates the buffer of %", storage->name(), ", which the next step reads"),
           concat("expected a carried value; add: carry %", storage->name(), " = %", op.result()->name()));
  for (const Value* flight : known.in_flight)
    if (is_start(*flight->producer()) && known.storage[flight->producer()->operands[0]] == storage)
      report(concat(name_of(op), " donates %", operand.name(), " while ", name_of(*flight->producer()), " reads it"),
             "expected the wait above");
  if (!known.donated.emplace(storage, &op).second)
    report(concat(name_of(op), " donates the buffer of %", storage->name(), " again"), "expected one new owner");
}

}  // namespace

void check_not_donated(const Value& value, const std::function<std::string()>& reader, const Known& known,
                       Report& report) {
  if (known.donated.empty()) return;
  const auto found = known.donated.find(known.storage[&value]);
  if (found == known.donated.end()) return;
  report(concat(reader(), " reads %", value.name(), ", whose buffer was given to ", name_of(*found->second)),
         "expected no read after the op that donates; read its result, or take the operand out of donates=");
}

void check_donations(const Op& op, Known& known, Report& report) {
  const auto reader = [&] { return name_of(op); };
  for (const Value* operand : op.operands)
    if (operand) check_not_donated(*operand, reader, known, report);
  if (!op.has_attr("donates")) return;
  const std::vector<int64_t> indexes = donated_operands(op);
  if (indexes.empty() || indexes.size() > op.results().size())
    return report(concat(name_of(op), " has donates=", op.attrs.at("donates")),
                  concat("expected a list of operand indexes, at most one per result (", op.results().size(), ')'));
  for (size_t i = 0; i < indexes.size(); ++i) {
    const int64_t index = indexes[i];
    const Value* operand = index >= 0 && index < static_cast<int64_t>(op.operands.size())
                               ? op.operands[static_cast<size_t>(index)]
                               : nullptr;
    if (!operand) {
      report(concat(name_of(op), " donates operand ", index), concat("expected an index below ", op.operands.size()));
      continue;
    }
    check_donation(op, *operand, op.result(static_cast<int>(i))->type(), known, report);
  }
}

}  // namespace sfsdp::ir::checks

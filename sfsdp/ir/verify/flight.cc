// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/verify/checks.h"

namespace sfsdp::ir::checks {

void check_flight(const Op& op, Known& known, Report& report) {
  for (const Value* operand : op.operands) {
    const bool async = operand && operand->type().kind == Type::Kind::Async;
    if (operand && is_wait(op) && !async)
      report(concat(name_of(op), " waits for %", operand->name(), ", which is not in flight"),
             concat("expected async, got ", operand->type(), "; read %", operand->name(), " itself"));
    else if (async && is_wait(op) && std::erase(known.in_flight, operand) == 0)
      report(concat(name_of(op), " waits for %", operand->name(), " a second time"), "expected one wait per start");
    else if (async && !is_wait(op))
      report(concat(op.opcode, " reads %", operand->name(), " before its wait"),
             concat("expected a tensor, got ", operand->type(), "; insert %", operand->name(), ".full = wait %",
                    operand->name()));
  }
  for (const auto& result : op.results()) {
    const bool async = result->type().kind == Type::Kind::Async;
    if (is_start(op) && !async)
      report(concat(name_of(op), " starts what is not async"),
             concat("expected async ", result->type(), ", got ", result->type()));
    if (async && !is_start(op))
      report(concat(name_of(op), " has an async result"),
             concat("expected a tensor, got ", result->type(), "; only *.start ops are async"));
    if (async && is_start(op)) known.in_flight.push_back(result.get());
  }
}

void check_all_waited(const Known& known, Report& report) {
  for (const Value* value : known.in_flight) {
    report.at(value->producer());
    report(concat(name_of(*value->producer()), " is started, but nothing waits for it"),
           concat("expected a wait; insert %", value->name(), ".full = wait %", value->name()));
  }
}

}  // namespace sfsdp::ir::checks

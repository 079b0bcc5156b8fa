// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/step/constants.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>

#include "sfsdp/base/error.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/plan/plan_text.h"

namespace sfsdp::step {

std::vector<std::optional<uint64_t>> bits_of_constants(const plan::StepPlan& plan,
                                                       const std::vector<at::Tensor>& constants) {
  std::vector<std::optional<uint64_t>> all;
  for (const plan::Buffer& b : plan.memory.constants) {
    const ir::Op& op = *b.value->producer();
    if (!op.is("constant")) {
      all.push_back(std::nullopt);
      continue;
    }
    const at::Tensor values = constants[static_cast<size_t>(op.attr<int64_t>("index"))].contiguous();
    all.push_back(xxh3(std::span(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes())));
  }
  return all;
}

void check_constants(const plan::StepPlan& plan, const std::vector<at::Tensor>& constants) {
  const auto now = bits_of_constants(plan, constants);
  for (size_t i = 0; i < now.size(); ++i)
    if (const auto expected = plan::bits_of_constant(plan, i); expected && expected != now[i]) {
      const ir::Op& op = *plan.memory.constants[i].value->producer();
      throw UserError(concat("step: the tensor read by ", readers_of(op, plan.graph), " has bits ", hex(*now[i]),
                             "\n  expected ", hex(*expected),
                             ", as when the step was compiled; make it a buffer, or a part of the batch"));
    }
}

std::string describe_constants(const plan::StepPlan& plan) {
  std::string text;
  for (size_t i = 0; i < plan.memory.constants.size(); ++i)
    if (const auto bits = plan::bits_of_constant(plan, i)) {
      const ir::Op& op = *plan.memory.constants[i].value->producer();
      text += concat(op.result()->type(), " of bits ", hex(*bits), ", read by ", readers_of(op, plan.graph), "\n");
    }
  return text;
}

std::string print_without_bits(const plan::StepPlan& plan) {
  std::string text = plan::print(plan);
  for (const auto& bits : plan.constant_bits) {
    const std::string said = bits ? concat(' ', plan::kBits, hex(*bits), '\n') : "";
    if (const size_t at = said.empty() ? std::string::npos : text.find(said, text.find(plan::kConstants));
        at != std::string::npos)
      text.replace(at, said.size(), concat(' ', plan::kBits, plan::kNoBits, '\n'));
  }
  return text;
}

std::string readers_of(const ir::Op& op, const ir::Graph& graph) {
  std::string text;
  int count = 0;
  for (const auto& reader : graph.ops())
    if (std::ranges::find(reader->operands, op.result()) != reader->operands.end() && ++count <= 3)
      text += concat(count > 1 ? ", " : "", ir::opcode_at(*reader));
  return count > 3 ? text + ", ..." : text;
}

}  // namespace sfsdp::step

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/pointwise_call.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/kernels/of_op.h"

namespace sfsdp::exec {
namespace {

// Blocks that a thread takes at once.
constexpr int64_t kBlocksOfThread = 16;

}  // namespace

size_t count_pointwise(std::span<const ir::Op* const> ops) {
  size_t count = 0;
  std::set<const ir::Value*> registers, made;
  // What a step makes lies in a register, of which there are no views.
  const auto is_view_of_made = [&](const ir::Value* operand) {
    return !made.contains(operand) && made.contains(ir::storage_of(operand));
  };
  for (; count < ops.size(); ++count) {
    const ir::Op& op = *ops[count];
    if (op.attr_or<std::string>("row_kernel", "") != "sfsdp.rows" || !kernels::point_op_of(op) ||
        op.result()->type().numel() != ops[0]->result()->type().numel())
      break;
    registers.insert(op.operands.begin(), op.operands.end());
    registers.insert(op.result());
    if (registers.size() > kernels::kMostPointRegisters || std::ranges::any_of(op.operands, is_view_of_made)) break;
    made.insert(op.result());
  }
  return count;
}

std::vector<const ir::Value*> operands_of_pointwise(std::span<const ir::Op* const> ops) {
  std::vector<const ir::Value*> operands;
  std::set<const ir::Value*> seen;
  for (const ir::Op* op : ops) {
    for (const ir::Value* operand : op->operands)
      if (seen.insert(operand).second) operands.push_back(operand);
    seen.insert(op->result());
  }
  return operands;
}

PointwiseCall::PointwiseCall(std::span<const ir::Op* const> ops, std::vector<const ir::Value*> results)
    : OwnCall(*ops[0], results), numel_(ops[0]->result()->type().numel()) {
  std::map<const ir::Value*, uint8_t> registers;
  const auto add = [&](const ir::Value* value) {
    const auto number = static_cast<uint8_t>(registers.size());
    registers[value] = number;
    return number;
  };
  for (const ir::Value* operand : operands_of_pointwise(ops)) {
    const int64_t numel = operand->type().numel();
    call_.inputs.push_back({nullptr, operand->type().dtype, add(operand), numel == numel_ ? 0 : numel});
  }
  for (const ir::Op* op : ops) {
    const kernels::PointOpOf of = *kernels::point_op_of(*op);
    const uint8_t a = registers.at(op->operands[of.a]), b = registers.at(op->operands[of.b]);
    call_.steps.push_back({of.op, add(op->result()), a, b, of.scalar});
  }
  SFSDP_CHECK(registers.size() <= kernels::kMostPointRegisters, registers.size(), " registers");
  for (const ir::Value* result : results)
    call_.outputs.push_back({nullptr, result->type().dtype, registers.at(result)});
  kernels::join_steps(call_);
}

std::span<at::Tensor> PointwiseCall::run(std::span<const at::Tensor> operands, const StepScalars& /*scalars*/) {
  const std::span<at::Tensor> results = this->results();
  for (size_t i = 0; i < operands.size(); ++i) {
    SFSDP_CHECK(operands[i].defined(), ir::name_of(op()), " reads what is not there: operand ", i, " of the chain");
    const at::Tensor* input = &operands[i];
    if (!input->is_contiguous()) input = &inputs_.emplace_back(input->contiguous());
    call_.inputs[i].data = const_cast<void*>(input->const_data_ptr());  // which it does not write
  }
  for (size_t i = 0; i < results.size(); ++i) call_.outputs[i].data = results[i].mutable_data_ptr();
  const int64_t blocks = (numel_ + kernels::kPointBlock - 1) / kernels::kPointBlock;
  at::parallel_for(0, blocks, kBlocksOfThread, [&](int64_t begin, int64_t end) {
    kernels::pointwise(call_, begin * kernels::kPointBlock, std::min(end * kernels::kPointBlock, numel_));
  });
  inputs_.clear();
  return results;
}

}  // namespace sfsdp::exec

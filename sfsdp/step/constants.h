// SPDX-License-Identifier: BSD-3-Clause
// The tensors that a captured step holds itself: they are no parameters, buffers or parts of the batch. A plan's text says their bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/plan/step_plan.h"

namespace sfsdp::step {

// StepPlan::constant_bits.
//   constants: by the attribute index= of the graph's `constant` ops
std::vector<std::optional<uint64_t>> bits_of_constants(const plan::StepPlan& plan,
                                                       const std::vector<at::Tensor>& constants);

// throws: UserError naming the first whose bits are no longer what the plan says, and what reads it
void check_constants(const plan::StepPlan& plan, const std::vector<at::Tensor>& constants);

// A line for each: type, bits, readers.
std::string describe_constants(const plan::StepPlan& plan);
// The plan's text with no bits of constants, which describe_constants() says.
std::string print_without_bits(const plan::StepPlan& plan);

// "aten.mul.Tensor at blocks.gate, ...": at most three.
std::string readers_of(const ir::Op& op, const ir::Graph& graph);

}  // namespace sfsdp::step

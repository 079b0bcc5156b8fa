// SPDX-License-Identifier: BSD-3-Clause
// Ops of LibTorch on parts of tensors, products of many matrices, and draws.
#pragma once

#include <string_view>
#include <vector>

#include "sfsdp/testing/interp/kernels.h"

namespace sfsdp::ir::interp {

Kernel find_part_kernel(std::string_view opcode);  // nullptr: none

// What a draw by counter depends on: seed, step, micro-batch (unless all draw alike, replicated=), where the op stands, and its
// stream=. Two numbers that i64 holds exactly here.
std::vector<double> draw_state(const KernelContext& c);
// 1 with probability `p`, else 0, in the shape of `like`; a function of `state` and of the element.
Array bernoulli(const Array& like, double p, const std::vector<double>& state);

}  // namespace sfsdp::ir::interp

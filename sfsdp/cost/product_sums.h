// SPDX-License-Identifier: BSD-3-Clause
// Sums over micro-batches that products make: a library's product of bf16 adds what it computes to an f32 sum (beta = 1), and the kernel
// that would read the gradient and the sum is not needed. Megatron-LM calls it gradient accumulation fusion.
#pragma once

#include <unordered_map>

#include "sfsdp/ir/graph.h"

namespace sfsdp::cost {

// A product that makes a gradient, and the `accumulate` that adds it up: directly, or through casts, views and a pack.
using ProductSums = std::unordered_map<const ir::Op*, const ir::Op*>;

// Products whose result nothing else reads.
ProductSums product_sums(const ir::Graph& graph);

}  // namespace sfsdp::cost

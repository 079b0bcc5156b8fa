// SPDX-License-Identifier: BSD-3-Clause
// Random ops as pure functions of (seed, step, micro-batch, op, element), so that they can be moved, run again and
// resharded. ATen's own generator gives numbers in the order of the calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sfsdp/exec/counter_rng.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::exec {

// Whether draw() knows the op: rand, randn, their _like, uniform, normal, bernoulli.
bool draws_random(const ir::Op& op);
// Throws UserError naming the op if it draws random numbers and draw() does not know it.
void check_drawable(const ir::Op& op);

// Gives each random op its number among those at its module path, as attribute `stream`. To be called once, on the
// graph as captured: later passes may move and repeat the ops.
void number_random_ops(ir::Graph& graph);

// The op's result.
//   shape: of what is wanted, which may be some rows of the op's
//   stream: element i of the result is global element stream.first_element + i
at::Tensor draw(const ir::Op& op, const std::vector<at::Tensor>& operands, at::IntArrayRef shape,
                const RandomStream& stream);

}  // namespace sfsdp::exec

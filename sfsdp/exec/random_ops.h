// SPDX-License-Identifier: BSD-3-Clause
// Random ops as pure functions of (seed, step, micro-batch, op, element), so that they can be moved, run again and
// resharded. ATen's own generator gives numbers in the order of the calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::exec {

// The stream of one random op. Elements are numbered with the batch first: a tensor [outer, rest] whose rest begins with
// the batch gives its element (o, r) the number (first_element + r) · outer + o. So a shard of rows draws what the whole
// tensor would have drawn there.
struct RandomStream {
  uint64_t key = 0;     // seed and step, mixed with the path
  uint64_t stream = 0;  // which random op of that path
  int64_t first_element = 0;
  int64_t outer = 1;
};

// In place, contiguous f32, f64, bf16 or f16. The draw is made in double and rounded once, so it does not depend on
// the machine.
void fill_uniform(const at::Tensor& tensor, double low, double high, const RandomStream& stream);
void fill_normal(const at::Tensor& tensor, double mean, double std, const RandomStream& stream);
// 1 with probability p, else 0.
void fill_bernoulli(const at::Tensor& tensor, double p, const RandomStream& stream);

// Whether draw() knows the op: rand, randn, their _like, uniform, normal, bernoulli.
bool draws_random(const ir::Op& op);
// Throws UserError naming the op if it draws random numbers and draw() does not know it.
void check_drawable(const ir::Op& op);

// Gives each random op its number among those at its module path, as attribute `stream`. To be called once, on the
// graph as captured: later passes may move and repeat the ops.
void number_random_ops(ir::Graph& graph);
// The same, and finds the batch in what is drawn (parallel/batch_order.h).
//   grow: captures the same step with so many times the rows; called where the graph draws at all
// Returns "" or what cannot be told, with a cure; ranks and micro-batches would not draw what one rank does.
std::string number_random_ops(ir::Graph& graph, const std::function<ir::Graph(int64_t factor)>& grow);

// The op's result.
//   shape: of what is wanted, which may be some rows of the op's
//   stream: says which numbers the result's elements have
at::Tensor draw(const ir::Op& op, const std::vector<at::Tensor>& operands, at::IntArrayRef shape,
                const RandomStream& stream);

}  // namespace sfsdp::exec

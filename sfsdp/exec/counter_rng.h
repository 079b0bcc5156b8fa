// SPDX-License-Identifier: BSD-3-Clause
// Fills tensors with random numbers that depend on nothing but (key, stream, global element index).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sfsdp::exec {

// The stream of one random op. Element i of `tensor` is global element `first_element + i` in row-major order, so a
// shard of rows draws what the whole tensor would have drawn there.
struct RandomStream {
  uint64_t key = 0;     // seed, and step and micro-batch where they matter, mixed with the path
  uint64_t stream = 0;  // which random op of that path
  int64_t first_element = 0;
};

// In place, contiguous f32, f64, bf16 or f16. The draw is made in double and rounded once, so it does not depend on
// the machine.
void fill_uniform(const at::Tensor& tensor, double low, double high, const RandomStream& stream);
void fill_normal(const at::Tensor& tensor, double mean, double std, const RandomStream& stream);
// 1 with probability p, else 0.
void fill_bernoulli(const at::Tensor& tensor, double p, const RandomStream& stream);

}  // namespace sfsdp::exec

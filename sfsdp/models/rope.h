// SPDX-License-Identifier: BSD-3-Clause
// Rotary position embedding of neighbouring components, as Llama's and GPT-J's sources have it.
#pragma once

#include <ATen/ATen.h>

#include <utility>

namespace sfsdp::models {

// Frequencies of a head's pairs: theta^(-2j / E), [E/2] f32.
inline at::Tensor rope_frequencies(int64_t head_width, double theta) {
  const int64_t half = head_width / 2;
  const double per_pair = 1.0 / static_cast<double>(half);
  return at::pow(theta, at::arange(half, at::TensorOptions(at::kFloat)) * -per_pair);
}

// Cosines and sines of each position's angles, [S, E/2] f32: component pairs are neighbours (2j, 2j + 1).
inline std::pair<at::Tensor, at::Tensor> rotations(int64_t seq_len, const at::Tensor& frequencies) {
  const at::Tensor angles = at::outer(at::arange(seq_len, at::TensorOptions(at::kFloat)), frequencies);
  return {angles.cos(), angles.sin()};
}

// Turns neighbours (2j, 2j + 1) by the position's angle, in float32. x: [B, S, H, E]; cos, sin: [S, E/2], or [B, S, E/2] of
// each row; the result has x's dtype.
inline at::Tensor rotate(const at::Tensor& x_BSHE, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor pairs = x_BSHE.to(at::kFloat).unflatten(-1, {-1, 2});
  const at::Tensor even = pairs.select(-1, 0), odd = pairs.select(-1, 1);
  const int64_t heads = cos.dim() - 1;
  const at::Tensor c = cos.unsqueeze(heads), s = sin.unsqueeze(heads);  // [S, 1, E/2] or [B, S, 1, E/2]
  return at::stack({even * c - odd * s, even * s + odd * c}, -1).flatten(-2).to(x_BSHE.scalar_type());
}

}  // namespace sfsdp::models

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/composites.h"

namespace sfsdp::cost {
namespace {

using ir::Op, ir::Value;

// How many kernels PyTorch runs for an op, and bytes for each element of its main operand: those of all kernels, and of one
// kernel in their place.
struct Counted {
  int64_t kernels = 1;
  double all = 0, alone = 0;
};

bool is_half(const Value& value) { return ir::is_half(value.type().dtype); }

MoreKernels over(const Value& value, const Counted& c) {
  return {.count = c.kernels - 1, .bytes = static_cast<double>(value.type().numel()) * (c.all - c.alone)};
}

// Each sum below has a term per kernel, reads and writes of an element together; kernels on a number per row move nothing.
// Forward: cast, square, mean, add, rsqrt, product, cast, product with the weight.
Counted norm_of(bool half, bool cast_first) {
  if (!half) return {.kernels = 6, .all = 8 + 4 + 8 + 8, .alone = 8};
  return cast_first ? Counted{.kernels = 8, .all = 6 + 8 + 4 + 8 + 6 + 4, .alone = 4}
                    : Counted{.kernels = 8, .all = 6 + 8 + 4 + 8 + 8 + 6, .alone = 4};
}

// Backward, in the same order from the end: the weight's two (of x, and of the weight with its sum over rows), the cast,
// both factors' and the sum of one over a row, the mean's, the square's three, the sum of both ways, the cast.
Counted norm_backward_of(bool half, bool cast_first) {
  const double factors = 8 + 12 + 4, mean = 4, square = 8 + 8 + 12, both = 12;
  if (!half) return {.kernels = 14, .all = 8 + 12 + 4 + factors + mean + square + both, .alone = 12};
  const double weight = cast_first ? 4 + 6 + 2 + 6 : 6 + 8 + 12 + 4;
  return {.kernels = cast_first ? 16 : 17, .all = weight + factors + mean + square + both + 6, .alone = 6};
}

// A cast to float32, a product of complex numbers, a cast.
Counted rope_of(bool half) {
  return half ? Counted{.kernels = 3, .all = 6 + 8 + 6, .alone = 4} : Counted{.kernels = 1, .all = 8, .alone = 8};
}

// Minus the right half, both put together, two products, a sum. Backward: the same but for the sum; what a half was taken
// from gets zeros and that half's gradient, twice; two sums.
Counted rope_in_halves_of(const Op& op) {
  const bool half = is_half(*op.operands[0]), casts = half && !op.attr_or("in_dtype", false);
  const double element = half && !casts ? 2 : 4;
  Counted c = op.is("rope") ? Counted{.kernels = 5, .all = (1 + 2 + 2 * 2 + 3) * element}
                            : Counted{.kernels = 9, .all = (1 + 2 * 2 + 2 * (1 + 1) + 2 * 3) * element};
  c.alone = half ? 4 : 8;
  if (casts) c.kernels += 2, c.all += 6 + 6;
  return c;
}

// A cast to float32; log_softmax, which walks over a row that no cache holds three times.
Counted loss_of(bool half) {
  return half ? Counted{.kernels = 3, .all = 6 + 16, .alone = 2} : Counted{.kernels = 2, .all = 16, .alone = 4};
}

// Zeros around the gradient of what was picked; that of log_softmax, which reads it twice and its result; the cast.
Counted loss_backward_of(bool half) {
  return half ? Counted{.kernels = 4, .all = 4 + 16 + 6, .alone = 4} : Counted{.kernels = 3, .all = 4 + 16, .alone = 8};
}

// In tensors of the parameter's size: decay 2, first moment 3, second moment 2 and 3, root 2, quotient 2, sum 2, step 4.
MoreKernels update_of(const Op& op) {
  const auto bytes = static_cast<double>(op.operands[0]->type().bytes());
  return {.count = 7, .bytes = bytes * (2 + 3 + 2 + 3 + 2 + 2 + 2 + 4 - 7)};
}

// Forward writes keys and values once for each query head; backward writes their gradients so, and adds them up.
MoreKernels heads_of(const Op& op, bool backward) {
  const size_t q = backward ? 1 : 0;
  const auto heads = op.operands[q]->type().shape()[1], groups = op.operands[q + 1]->type().shape()[1];
  if (heads == groups) return {};
  const auto given = static_cast<double>(op.operands[q + 1]->type().bytes() + op.operands[q + 2]->type().bytes());
  const double repeated = given * static_cast<double>(heads) / static_cast<double>(groups);
  return {.count = 2, .bytes = backward ? 2 * repeated : given + repeated};
}

}  // namespace

MoreKernels more_kernels(const Op& op, const Composites& composites) {
  if (composites.norm && op.is("rms_norm"))
    return over(*op.operands[0], norm_of(is_half(*op.operands[0]), op.attr_or("cast_first", false)));
  if (composites.norm && op.is("rms_norm_backward"))
    return over(*op.operands[1], norm_backward_of(is_half(*op.operands[1]), op.attr_or("cast_first", false)));
  const bool turns = op.is("rope", "rope_inverse"), in_halves = turns && op.attr_or("halves", false);
  if (composites.real_rope && in_halves) return over(*op.operands[0], rope_in_halves_of(op));
  if (composites.rope && turns && !in_halves) return over(*op.operands[0], rope_of(is_half(*op.operands[0])));
  if (composites.loss && op.is("cross_entropy")) return over(*op.operands[0], loss_of(is_half(*op.operands[0])));
  if (composites.loss && op.is("cross_entropy_backward"))
    return over(*op.operands[1], loss_backward_of(is_half(*op.operands[1])));
  if (composites.update && op.is("adamw")) return update_of(op);
  if (composites.heads && op.is("sdpa", "sdpa_backward")) return heads_of(op, op.is("sdpa_backward"));
  return {};
}

}  // namespace sfsdp::cost

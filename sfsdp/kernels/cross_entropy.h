// SPDX-License-Identifier: BSD-3-Clause
// Cross entropy of rows of logits with class numbers, and its gradient: a row is read again only while it is in the caches. In float32, whatever the
// logits are. Torch-free.
#pragma once

#include <cstdint>

#include "sfsdp/ir/type.h"

namespace sfsdp::kernels {

struct CrossEntropy {
  int64_t classes = 1;
  ir::DType dtype = ir::DType::f32;  // of the logits and their gradient: f32 or bf16
  const void* logits = nullptr;      // [rows, classes], contiguous
  const int64_t* targets = nullptr;  // [rows]: 0 to classes - 1, or ignored
  int64_t ignored = -100;            // a target that counts for nothing
  int64_t first =
      0;  // the class of the first logit, where these are a part of them: parts, and backward with given_sums
  // parts, and backward with given_sums: so many of these logits are classes, what stands after them is nothing; -1: all
  int64_t counted = -1;
  float* log_sums = nullptr;  // forward: [rows], the logarithm of the sum of exp(logits)
  float* losses = nullptr;    // forward: [rows], log_sum - logit of the target; 0 where it is ignored
  float* parts = nullptr;     // parts: [3, rows], and how many rows there are
  int64_t rows = 0;
  const float* given_sums =
      nullptr;  // backward: [rows], log_sums of all classes; nullptr: those of the logits, made again
  const float* factors = nullptr;  // backward: of a row's gradient, or of all rows'
  bool factor_by_row = false;
  void* grad = nullptr;  // backward: [rows, classes], contiguous
};

// Rows begin to end - 1 of log_sums and losses, from logits and targets. Targets are not checked.
void cross_entropy(const CrossEntropy& call, int64_t begin, int64_t end);
// Columns begin to end - 1 of parts: the largest logit, the sum of exp(logit - largest), the target's logit, 0 where the target is none
// of these classes or ignored.
void cross_entropy_parts(const CrossEntropy& call, int64_t begin, int64_t end);
// Rows of grad = factor · (softmax of the logits - 1 at the target), 0 where the target is ignored.
void cross_entropy_backward(const CrossEntropy& call, int64_t begin, int64_t end);

}  // namespace sfsdp::kernels

// SPDX-License-Identifier: BSD-3-Clause
// Attention on a CPU, tile by tile, so that no score reaches memory (FlashAttention 2, arXiv 2307.08691). Torch-free.
//
// Scores are kept transposed, a row for each key: then a row's vector holds queries, maxima and sums of the softmax need no
// reduction within vectors, and of the operands only a block of queries is ever transposed. Arithmetic is float32. On processors that multiply pairs of
// bfloat16, operands of that are multiplied so: there weights and slopes are rounded to it, and sums are float32.
#pragma once

#include <cstdint>

#include "sfsdp/ir/sequence_order.h"
#include "sfsdp/ir/type.h"

namespace sfsdp::kernels {

struct AttentionShape {
  int64_t batch = 1, heads = 1, groups = 1;  // each group of heads / groups heads shares keys and values
  int64_t queries = 1, keys = 1, width = 16;
  bool causal = false;  // a query sees keys 0 to its own position
  float scale = 1;      // of the scores, above 0
  ir::DType dtype = ir::DType::f32;
  bool is_part = false;  // Attention::positions says where the queries stand; else query i stands at i
  // How long the sequence is in which Attention::key_positions says where the keys stand; 0: they are all of it, and key i stands at i.
  int64_t length = 0;
  int64_t positions() const { return length > 0 ? length : keys; }
};

// Whether the functions below compute it: f32 or bf16, widths of 16 to 256 in steps of 16; if causal, as many keys as
// queries; of a part, which is causal, at least as many. A query that sees no key has out = 0 and log_sum = -inf.
bool can_attend(const AttentionShape& shape);

// [batch, heads, rows, width]: where element (b, h, r, i) is, in elements: b · batch + h · head + r · row + i.
struct Heads {
  void* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;
};
// [batch, heads, rows] of f32: b · batch + h · head + r · row.
struct Rows {
  float* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;
};

struct Attention {
  AttentionShape shape;
  Heads query, key, value;  // of shape.dtype; key and value: [batch, groups, keys, width]
  const int64_t* documents =
      nullptr;     // [batch, positions()], contiguous: a query sees keys of its own document alone; null: all
  Heads out;       // as query
  Rows log_sum;    // of each query: the logarithm of the sum of exp(scale · score)
  Heads grad_out;  // backward alone, as query, as are the next three
  Heads grad_query, grad_key, grad_value;
  ir::PositionRun positions[2] = {};      // of a part's queries, one run after the other; the second may be empty
  ir::PositionRun key_positions[2] = {};  // the same of keys, with shape.length
};

// Units of work that do not touch each other's results: shape.batch · shape.groups. Threads may take parts of them.
int64_t units_of(const AttentionShape& shape);

// out and log_sum of units begin to end - 1, from query, key, value.
void attend(const Attention& attention, int64_t begin, int64_t end);
// The three gradients, from all else.
void attend_backward(const Attention& attention, int64_t begin, int64_t end);

}  // namespace sfsdp::kernels

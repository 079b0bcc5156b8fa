// SPDX-License-Identifier: BSD-3-Clause
// Ops of a graph that PyTorch has no kernel for: what its own, smaller kernels move through memory instead.
#pragma once

#include "sfsdp/ir/graph.h"

namespace sfsdp::cost {

// What is not one kernel where PyTorch executes, and what is.
struct Composites {
  bool norm = false;          // rms_norm as a model in Python, or PyTorch before 2.9, writes it
  bool rope = false;          // float32 copies, products of complex numbers, casts
  bool real_rope = false;     // rope in halves, by views and products, which Inductor puts together
  bool loss = false;          // a float32 copy of the logits, log_softmax, nll_loss
  bool update = false;        // AdamW by foreach: a kernel per arithmetic operation
  bool heads = false;         // keys and values are repeated for each query head before attention
  bool whole_blocks = false;  // a checkpoint runs its block to the end again, also what backward does not read
  bool product_sums =
      false;  // products add gradients to the sums over micro-batches: one kernel less, cost/product_sums.h
};

// Kernels beyond one, and bytes beyond those that the op itself reads and writes.
struct MoreKernels {
  int64_t count = 0;
  double bytes = 0;
};
MoreKernels more_kernels(const ir::Op& op, const Composites& composites);

}  // namespace sfsdp::cost

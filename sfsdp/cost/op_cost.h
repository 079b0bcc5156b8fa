// SPDX-License-Identifier: BSD-3-Clause
// What the ops of a graph cost on a device: a roofline per kernel. A kernel is one op, or a group of pointwise ops and
// reductions that a compiler runs as one (fusion): it reads and writes only what crosses the group's border.
#pragma once

#include <cstdint>
#include <vector>

#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::cost {

enum class Execution : uint8_t {
  Eager,  // a kernel per op
  Fused,  // chains of pointwise ops and reductions are one kernel
};

struct Kernel {
  std::vector<const ir::Op*> ops;  // in order; views and what moves no data are in none
  double flops = 0;
  double bytes = 0;
  double seconds = 0;
};

struct KernelTable {
  std::vector<Kernel> kernels;
  std::vector<int> kernel_of;  // by position of the op in the graph; -1: costs nothing or is a collective
};

KernelTable form_kernels(const ir::Graph& graph, const Machine& machine, Execution execution);

// Floating point operations of one op: products and attention; 0 for all else.
double flops_of(const ir::Op& op);

}  // namespace sfsdp::cost

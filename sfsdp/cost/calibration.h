// SPDX-License-Identifier: BSD-3-Clause
// What `sfsdp calibrate` measures, and what its points say of a machine as a whole. The measuring itself needs LibTorch
// and is in tools/calibrate_torch.cc.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::cost {

// The kernels of a graph to measure, in its order: one op for each opcode and types_of. Not those that draw random
// numbers, nor `accumulate`, whose work depends on the micro-batch.
std::vector<const ir::Op*> ops_to_measure(const ir::Graph& graph);

// Copies and pointwise ops over 4 KiB, 16 KiB, … of f32, up to `max_bytes`: a graph in text form.
std::string pointwise_graph(int64_t max_bytes);

// Kind and bytes of the whole tensor.
using CollectiveSize = std::pair<std::string, int64_t>;
// Every size up to `max_bytes` in `graph`, once.
std::vector<CollectiveSize> collectives_of_step(const ir::Graph& graph, int64_t max_bytes);
// For each kind 1 KiB, 4 KiB, … up to `max_bytes`, without those in `known`.
std::vector<CollectiveSize> collectives_by_size(const std::vector<CollectiveSize>& known, int64_t max_bytes);

// Sets what the formulas use from `machine.measured`, for ops and sizes without a point: peaks are the best product's
// rate, efficiencies the mean over all work, bandwidth and launch those of copies, the link's those of all_gather.
//   dispatch: seconds of an op that moves no data
void fit_formulas(Machine& machine, double dispatch);

// Raises the peaks to what the products of a plan's kernels reach, which may be another library's; sets the efficiency of products to
// the mean over these kernels, and keeps the rate of attention.
//   kernels: with seconds that were measured, as price_kernels has them from `machine.measured`
void fit_products(Machine& machine, const std::vector<Kernel>& kernels);

}  // namespace sfsdp::cost

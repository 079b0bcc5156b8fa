// SPDX-License-Identifier: BSD-3-Clause
// What:   makes a captured single-device step the program of one data-parallel rank: DDP, FSDP or HSDP.
// Why:    three placements of one mechanism: a parameter is materialised once per use region (cast, all_gather), its
//         gradient goes the way back (cast, reduce_scatter, all_reduce).
// Needs:  a graph from capture::capture_step: full parameters, one `gradient` op per trained parameter.
// Leaves: every carried value as stored (split or replicated), every gradient reduced over all data axes. At stages 1 and
//         2 parameters are gathered in forward alone: the pass gather_once makes that one gather per step.
// Source: SimpleFSDP, arXiv:2411.00284; FSDP2's order of casts and reductions (torch/distributed/fsdp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/parallel/context_parallel.h"
#include "sfsdp/parallel/expert_parallel.h"
#include "sfsdp/parallel/tensor_parallel.h"

namespace sfsdp {

enum class DataParallelMode : uint8_t {
  Replicate,    // DDP: whole parameters on every rank, gradients all-reduced
  FullyShard,   // FSDP: parameters, gradients and optimizer state cut in dimension 0 over dp_shard
  HybridShard,  // HSDP: cut over dp_shard, replicated over dp_replicate
};

// Replicate or Shard(0) over the shard axes: what a ZeRO stage cuts. dp_replicate always replicates, so a shard degree
// below the world size works at every stage.
//   parameters: as forward and backward read them. Shard: gathered where they are read; Replicate: once per step
//   gradients:  as they add up over micro-batches. Shard: reduced in each of them; Replicate: by the last
//   state:      the stored parameter that is updated, and the optimizer's moments
struct ZeroPlacements {
  ir::Placement parameters, gradients, state;
};

// 0: DDP. 1: optimizer state sharded. 2: gradients too. 3: parameters too (FSDP). Throws UserError for other stages.
// Source: ZeRO, arXiv:1910.02054.
ZeroPlacements zero_placements(int64_t stage);

struct MixedPrecisionPolicy {
  std::optional<ir::DType> param_dtype;  // of gathered parameters and of compute; unset: as stored
  // In what gradients are sent; unset: the gradient's own. A summand over a model axis, such as a norm's over tp, is not rounded to it.
  std::optional<ir::DType> reduce_dtype;
  // Reduced gradients are kept, added up over micro-batches and read by the update in this dtype; unset: as stored.
  std::optional<ir::DType> grad_dtype = {};
  // The optimizer's moments have this dtype; unset: as stored. No kernel of ours updates parameters by moments or gradients of
  // another dtype yet: for simulation.
  std::optional<ir::DType> state_dtype = {};
};

enum class ParameterLayout : uint8_t {
  Flat,  // the parameters of a unit are one flat buffer, a rank holds a range of it: no copies around collectives
  Dim0,  // each parameter is cut by itself in dimension 0, as FSDP2's state dict shows it; a unit's are copied into buckets
};

struct DataParallelOptions {
  // Unset: as the mesh has it. Only dp_replicate above 1: Replicate; both: HybridShard; else FullyShard.
  std::optional<DataParallelMode> mode = {};
  int64_t zero_stage = 3;  // what is cut over dp_shard: zero_placements
  MixedPrecisionPolicy mixed_precision = {};
  // Gather again for backward (true) or keep the gathered parameter from forward. Below stage 3 there is nothing to gather.
  bool reshard_after_forward = true;
  // With several micro-batches: whole gradients are added up, in the dtype of their reduction, and reduced in the last
  // one (true); or each micro-batch reduces its own, and shards are added up (false): k times the bytes sent, a shard's
  // memory. Source: FSDP2's set_requires_gradient_sync.
  bool reduce_once = false;
  // Parameters with fewer elements stay replicated, their gradients are all-reduced. 0: all are cut.
  int64_t min_shard_numel = 0;
  ParameterLayout layout = ParameterLayout::Flat;
  // Which dimension of each tensor of the batch is the batch, -1: none; empty: dimension 0 of all. Random numbers follow
  // it (batch_order.h), and nothing else.
  std::vector<int64_t> batch_dims = {};
  // Which modules' parameters form a unit, as passes/bucket/wrap.h has it; "": by the numbers in module paths.
  std::string units = {};
};

// A mesh and what its axes do: dp_replicate and dp_shard, of which one may be absent, ep, cp and tp.
struct Strategy {
  DeviceMesh mesh;
  DataParallelOptions options;
  TensorParallel tensor = {};
  ContextParallelOptions context = {};
  ExpertParallelOptions expert = {};

  int64_t axis_size(const std::string& axis) const;  // 1 when the mesh has no such axis
  int64_t data_ranks() const;                        // dp_replicate × dp_shard
  // Axes of size > 1, outer first. Each rank on data_axes has its own batch. Stored parameters are cut over shard_axes, dp_shard, cp
  // and innermost ep, and the same over replicate_axes; experts, which ep has cut, over expert_shard_axes, dp_shard and cp.
  AxisList data_axes() const;
  AxisList shard_axes() const;
  AxisList expert_shard_axes() const;
  AxisList replicate_axes() const;
  // Those that cut the model: ranks along them are given the same batch. token_axes, ep and cp, cut it, tensor_axes parameters.
  AxisList model_axes() const;
  AxisList token_axes() const;
  AxisList tensor_axes() const;
};

// Fills in the mode. Throws UserError for an option out of range, and when mode and axes do not fit (FullyShard with
// dp_replicate above 1, Replicate with dp_shard above 1, tp above 1 with nothing to cut, other axes above 1).
Strategy data_parallel(DeviceMesh mesh, DataParallelOptions options = {}, TensorParallel tensor = {},
                       ContextParallelOptions context = {}, ExpertParallelOptions expert = {});

namespace parallel {

// Who divides by the number of equal parts of a mean: 1 / parts = seed · rest.
//   seed: the gradient of the loss, with which backward begins
//   rest: what reduced gradients are multiplied by, in the dtype of the stored parameter
// In half precision the seed is a power of two: 1/3 rounds in bf16, and all gradients would be off by up to 2^-9.
struct MeanShare {
  double seed = 1, rest = 1;
};
MeanShare share_of_mean(int64_t parts, bool half_precision);

struct GradientOptions {
  double factor = 1;  // of reduced gradients
};

// Rewrites `graph` in place. Collectives of axes of size 1 are not emitted: one rank has none at all.
void apply_data_parallel(ir::Graph& graph, const Strategy& strategy, const GradientOptions& options = {});

}  // namespace parallel
}  // namespace sfsdp

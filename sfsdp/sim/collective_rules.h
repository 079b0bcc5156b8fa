// SPDX-License-Identifier: BSD-3-Clause
// Which collectives hold the compute lane where they start, what stands for those that ZeRO 1 and 2 run, and what each costs.
#pragma once

#include <cstdint>
#include <string>

#include "sfsdp/cost/collective_cost.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::sim {

// When the gathers that run once per step are waited for (ZeRO stages 1 and 2), and what they are.
enum class StepGathers : uint8_t {
  Forward,  // where forward reads them: our plan, Megatron-LM's overlap-param-gather
  Update,   // all of them after the update, before forward begins: DeepSpeed
  // The same two where whole parameters are dealt to owners, which update and broadcast them one by one; gradients are
  // all-reduced where a shard would do: DDP with PyTorch's ZeroRedundancyOptimizer waits for all, others do not.
  BroadcastUpdate,
  BroadcastForward,
};

// When reductions of gradients are waited for.
enum class Reductions : uint8_t {
  Overlap,  // where the graph waits: backward goes on beside them
  Block,    // where they start: on the stream that computes, as DeepSpeed's stages 1 and 2 with overlap_comm = false
};

class CollectiveRules {
 public:
  //   all_block: where they start, a wait does nothing
  CollectiveRules(const ir::Graph& graph, bool all_block, StepGathers gathers, Reductions reductions);

  bool blocks(const ir::Op& start) const;
  std::string kind_of(const ir::Op& op) const;

 private:
  const bool all_block_;
  const StepGathers gathers_;
  const Reductions reductions_;
  bool broadcasts_ = false;  // there are gathers that run once per step, and broadcasts stand for them
};

//   kind:  what stands for `op`
//   bytes: of its larger side
cost::CollectiveCost cost_of(const ir::Op& op, const std::string& kind, double bytes, cost::GroupShape group,
                             const cost::Machine& machine);

}  // namespace sfsdp::sim

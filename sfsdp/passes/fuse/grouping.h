// SPDX-License-Identifier: BSD-3-Clause
// Deals the ops of a graph out to kernels, in the graph's order, by the rule of fuse.h. Changes nothing.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/passes/fuse/join_rules.h"

namespace sfsdp::passes {

// An op that is not in the kernel of `other`, though it reads what that makes, or the same as that.
struct Refusal {
  const ir::Op* op = nullptr;
  const ir::Op* other = nullptr;
  Apart why = Apart::No;
};

// State: kernels are open while ops may join them, and stay in the list once they have ended.
class Grouping {
 public:
  //   refusals: takes what was kept apart and why; nullptr: nobody asks
  Grouping(const ir::Graph& graph, FuseScope scope, std::vector<Refusal>* refusals = nullptr);

  const std::deque<Kernel>& kernels() const { return kernels_; }
  const ir::Index& index() const { return index_; }

 private:
  void place(ir::Op* op);
  Kernel& begin(const ir::Op& op, cost::Class kind);
  bool is_packed_cast(const ir::Op& op) const;
  void take_casts(const ir::Op& pack, Kernel& kernel);
  Kernel* packed_for(const ir::Op& sum);
  Kernel* find(const ir::Op& op, cost::Class kind);
  void note_refusals(const ir::Op& op, cost::Class kind, const Kernel* joined);
  void end_what_is_read(const ir::Op& op, const Kernel* joined);
  void end(Kernel& kernel, Apart why);

  const FuseScope scope_;
  const ir::Index index_;
  std::deque<Kernel> kernels_;
  std::vector<Kernel*> open_;  // in the order in which they began
  std::unordered_map<const ir::Op*, Kernel*> made_by_;
  JoinRules rules_;
  std::vector<Refusal>* refusals_;
};

}  // namespace sfsdp::passes

// SPDX-License-Identifier: BSD-3-Clause
// How the ops of a step are cut over a tensor axis, with what later ops then send in mind. Rules for one op are those of op_cuts.h.
//
// A policy alone, which takes for each op in the graph's order what costs least in front of it, is blind to what follows. So each way of an
// op is tried: the policy goes on from it, op by op, until all that later ops read lies as it would have otherwise, and the way of
// which this costs least is taken (rollout: Bertsekas, Dynamic Programming and Optimal Control, section 6.4). So it is never worse than the
// policy, by its own measure. Like ops of like layers are decided once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/parallel/op_cuts.h"
#include "sfsdp/parallel/tensor_parallel.h"

namespace sfsdp::parallel {

class Rollout {
 public:
  struct Way {
    OpCut cut;
    bool of_vocabulary = false;  // as vocabulary_cuts.h has it
  };

  // The graph is not cut yet over the axis.
  //   cuts: which dimension of which parameters is cut, by name
  //   held: values that the user wants to lie so, for all that read them
  Rollout(const ir::Graph& graph, const std::map<std::string, int64_t>& cuts, const TensorParallelOptions& options,
          int64_t ranks, std::unordered_map<const ir::Value*, ir::Placement> held = {});

  // To be asked of all ops but roots and gradients, once each, in the graph's order.
  Way choose(const ir::Op& op);
  void take_gradient(const ir::Op& op);  // to be told of each, in the same order

  // For MadeAgain (made_again.h), as things stand.
  ir::Placement placement_of(const ir::Value* value) const { return lies_[value].base; }
  bool is_whole_made(const ir::Value* value) const;
  bool is_whole_alike(const ir::Value& value) const { return is_whole_made(&value); }
  const std::vector<ir::Value*>& operands_of(const ir::Op& op) const { return operands_[&op]; }
  bool knows(const ir::Op& op) const { return op.id() < bound_; }  // not made since

 private:
  // How a value lies, and what was made of it for readers.
  struct Lies {
    ir::Placement base;
    std::vector<ir::Placement> made;
    bool operator==(const Lies& other) const;
  };
  // What is undone to get back.
  struct Change {
    const ir::Value* value;
    ir::Placement base;
    size_t made;
    const ir::Op* lowered = nullptr;
  };
  // What one op of a trial has cost, all before it too, and what it has changed.
  struct Step {
    double cost = 0;
    bool lowers = false;  // an op of a vocabulary
    std::vector<std::pair<const ir::Value*, Lies>> after;
  };
  // What a trial has led to: a trial to the end of the graph, or to where nothing differs.
  struct Outcome {
    double cost = 0, of_other = 0;
  };
  // CutFirst: of ways that cost as much the first, in which most is cut; WholeFirst: one that leaves results whole, of which a part is next
  // to nothing. Planned: what the best trial so far has done, else as CutFirst.
  enum class Policy : uint8_t { CutFirst, WholeFirst, Planned };
  using Trail = std::vector<std::pair<const ir::Op*, OpCut>>;
  struct Trial {
    size_t way;
    Policy policy;
  };
  using Touched = std::unordered_map<const ir::Value*, Lies>;

  std::vector<Way> ways_of(const ir::Op& op);
  void add_of_gradient(const ir::Op& op, const std::vector<ir::Placement>& operands, std::vector<Way>& ways);
  double apply(const ir::Op& op, const Way& way);
  double apply_and_work(const ir::Op& op, const Way& way);
  double apply_gradient(const ir::Op& op);
  double step(const ir::Op& op);  // by the policy
  double end();
  double take(const ir::Value& value, const ir::Placement& wanted, bool by_op = true);
  double making_cost(const ir::Value& value, const ir::Placement& wanted, bool by_op);
  double work_of(const ir::Op& op, const OpCut& cut) const;
  void set_base(const ir::Value* value, const ir::Placement& base);
  void undo_to(size_t mark);

  size_t best_of(const ir::Op& op, const std::vector<Way>& ways);
  size_t best_by_policy(const ir::Op& op, const std::vector<Way>& ways);
  static std::optional<size_t> find(const std::vector<Way>& ways, const OpCut& cut);
  size_t roll_out(const ir::Op& op, const std::vector<Way>& ways, const std::vector<size_t>& possible, size_t usual);
  std::vector<Step> record(size_t at, const Way& way);
  std::optional<Outcome> try_way(size_t at, const Way& way, const std::vector<Step>& other);
  bool is_read_after(const ir::Value* value, size_t at) const;
  uint64_t key_of(const ir::Op& op) const;
  void colour();

  const ir::Graph& graph_;
  const size_t bound_;  // of the ids of its ops
  const ir::Index index_;
  const std::map<std::string, int64_t>& cuts_;
  const TensorParallelOptions& options_;
  const int64_t ranks_;
  const std::unordered_map<const ir::Value*, ir::Placement> held_;
  CutsOfOps cuts_of_ops_;
  ir::OpTable<std::vector<ir::Value*>> operands_;  // as they were, before partition put others in their place
  ir::ValueTable<Lies> lies_;
  ir::OpTable<char> lowered_;                            // ops of a vocabulary, each rank for its part
  ir::OpTable<std::optional<ir::Placement>> gradients_;  // of products that make those of cut parameters, as these lie
  ir::OpTable<uint64_t> colour_;                         // the same for ops of which all is alike, some ops far
  std::vector<Change> changes_;
  Policy policy_ = Policy::Planned;  // of the trial that is made
  Trail trail_;                      // what it has chosen
  ir::OpTable<std::optional<OpCut>> planned_;
  size_t planned_to_ = 0;                       // the last position that is planned
  std::unordered_map<uint64_t, OpCut> chosen_;  // by key_of
};

}  // namespace sfsdp::parallel

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/pytorch/lifetimes.h"

#include <algorithm>
#include <map>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/passes/memory/remat_list.h"

namespace sfsdp::sim {
namespace {

using cost::Class;
using ir::Op, ir::Section, ir::Value;

// Whether PyTorch writes the result over the first operand, where the graph does not say so: a sum over micro-batches, a
// reduction of what is sharded already, a clipped gradient.
bool is_in_place(const Op& op) {
  return op.is("accumulate") || ir::collective_kind(op) == "all_reduce" ||
         (op.is("scale") && op.section == Section::Clip);
}

// Whether one kernel may read what another pointwise kernel makes without its being stored.
bool is_read_by_kernel_alone(const Op& op) { return cost::is_fusible(cost::class_of(op)); }

}  // namespace

const Op* param_behind(const Value* value) {
  const Op* op = value->producer();
  while (!op->operands.empty() && op->operands[0] &&
         (ir::aliased_operand(*op) == 0 || op->is("cast", "pad", "pack", "unpack") ||
          ir::collective_kind(*op) == "all_gather"))
    op = op->operands[0]->producer();
  return op->is("param") ? op : nullptr;
}

Lifetimes::Lifetimes(const ir::Graph& graph, const PyTorchOptions& options) : graph_(graph), options_(options) {
  const cost::Kernels kernels = cost::kernels_of(graph);
  inside_ = cost::values_inside(graph, kernels);
  for (const auto& op : graph.ops())
    if (op->is("accumulate") && inside_.erase(ir::storage_of(op->operands[0])) > 0)
      added_in_place_.insert(ir::storage_of(op->operands[0]));
  mark_recomputed();
  set_order();
  std::unordered_map<const Op*, int> kernel_of;
  for (size_t i = 0; i < graph.ops().size(); ++i) kernel_of[graph.ops()[i].get()] = kernels.of[i];
  std::unordered_map<int, size_t> ends;
  for (size_t i = 0; i < order_.size(); ++i)
    if (kernel_of.at(order_[i]) >= 0) ends[kernel_of.at(order_[i])] = i;
  for (size_t i = 0; i < order_.size(); ++i) {
    const int kernel = kernel_of.at(order_[i]);
    kernel_end_.push_back(kernel >= 0 ? ends.at(kernel) : i);
  }
  if (options.compiled) mark_inductor();
  set_last();
  if (options.save_list && has_checkpoints()) keep_listed();
}

// Ops of backward that neither compute a gradient nor read one.
void Lifetimes::mark_recomputed() {
  std::unordered_set<const Value*> gradients;
  for (const auto& op : graph_.ops()) {
    if (op->section != Section::Bwd) continue;
    const bool is_gradient =
        op->bwd_of || std::ranges::any_of(op->operands, [&](const Value* v) { return gradients.contains(v); });
    if (is_gradient)
      for (const auto& result : op->results()) gradients.insert(result.get());
    else if (!ir::block_of(op->module_path).empty() && !param_behind(op->result()) && !ir::is_collective(*op))
      recomputed_.insert(op.get());
  }
}

void Lifetimes::set_order() {
  std::map<std::string, std::vector<const Op*>, std::less<>> by_block;
  if (has_checkpoints())
    for (const auto& op : graph_.ops())
      if (recomputed_.contains(op.get())) by_block[std::string(ir::block_of(op->module_path))].push_back(op.get());
  for (const auto& op : graph_.ops()) {
    const bool moves = has_checkpoints() && recomputed_.contains(op.get());
    if (!moves) {
      order_.push_back(op.get());
      continue;
    }
    const auto block = by_block.find(ir::block_of(op->module_path));
    if (block == by_block.end()) continue;  // computed already
    order_.insert(order_.end(), block->second.begin(), block->second.end());
    recomputed_at_[block->first] = order_.size() - 1;
    by_block.erase(block);
  }
  SFSDP_CHECK(order_.size() == graph_.ops().size(), order_.size(), " ops in order, the graph has ",
              graph_.ops().size());
}

// Inductor's partitioner: a pointwise result of forward that backward reads in kernels of pointwise ops and reductions
// alone is computed there again, if all it is computed from is kept anyway.
void Lifetimes::mark_inductor() {
  std::unordered_set<const Value*> read_by_backward, read_from_memory;
  for (const Op* op : order_) {
    if (op->section != Section::Bwd || cost::class_of(*op) == Class::Free) continue;
    for (const Value* operand : op->operands) {
      if (!operand) continue;
      read_by_backward.insert(ir::storage_of(operand));
      if (!is_read_by_kernel_alone(*op) || ir::block_of(op->module_path).empty())
        read_from_memory.insert(ir::storage_of(operand));
    }
  }
  const auto is_there = [&](const Value* operand) {
    const Value* from = ir::storage_of(operand);
    return again_.contains(from) || read_by_backward.contains(from) || ir::is_root(*from->producer()) ||
           param_behind(from);
  };
  for (const Op* op : order_) {
    if (!ir::is_forward(op->section) || cost::class_of(*op) != Class::Pointwise ||
        ir::block_of(op->module_path).empty())
      continue;
    const Value* result = op->result();
    if (!read_by_backward.contains(result) || read_from_memory.contains(result)) continue;
    if (std::ranges::all_of(op->operands, [&](const Value* v) { return !v || is_there(v); })) again_.insert(result);
  }
}

const Value* Lifetimes::passed_through(const Value* value) const {
  while (true) {
    const Value* from = ir::storage_of(value);
    const Op& op = *from->producer();
    const auto donated = ir::donated_operands(op);
    const auto result = static_cast<size_t>(from->result_index());
    if (casts_to_pack_.contains(from) || is_in_place(op)) {
      value = op.operands[0];
    } else if (result < donated.size()) {
      value = op.operands[static_cast<size_t>(donated[result])];
    } else {
      return from;
    }
  }
}

bool Lifetimes::is_stored(const Value* value) const {
  if (passed_through(value) != value || value->type().bytes() == 0) return false;
  return !inside_.contains(value);
}

std::vector<const Value*> Lifetimes::memory_of(const Value* value, bool in_backward) const {
  const Value* from = passed_through(value);
  if (!inside_.contains(from) && !(in_backward && again_.contains(from))) return {from};
  std::vector<const Value*> all;
  for (const Value* operand : from->producer()->operands)
    if (operand)
      for (const Value* memory : memory_of(operand, in_backward)) all.push_back(memory);
  return all;
}

void Lifetimes::set_last() {
  const ir::Index index(graph_);
  for (const auto& op : graph_.ops())
    if (op->is("cast") && !index.readers(op->result()).empty() &&
        std::ranges::all_of(index.readers(op->result()), [](const Op* reader) { return reader->is("pack"); }))
      casts_to_pack_.insert(op->result());
  const auto touch = [&](const Value* value, size_t slot, bool in_backward) {
    for (const Value* memory : memory_of(value, in_backward)) {
      size_t& last = last_[memory];
      last = std::max(last, slot);
    }
  };
  for (size_t i = 0; i < order_.size(); ++i) {
    const Op& op = *order_[i];
    for (size_t k = 0; k < op.operands.size(); ++k) {
      // The float32 log-probabilities stand for the logits: cross_entropy of PyTorch's own keeps these.
      if (options_.loss != PyTorchLoss::Fused && k == 1 && op.is("cross_entropy_backward")) continue;
      if (op.operands[k]) touch(op.operands[k], kernel_end_[i], op.section == Section::Bwd);
    }
    for (const auto& result : op.results()) touch(result.get(), i, false);
    // What a reduction sends is held until the next one begins, which is where the graph waits for it.
    if (ir::is_wait(op) && ir::collective_kind(*op.operands[0]->producer()) != "all_gather")
      for (const Value* sent : op.operands[0]->producer()->operands) touch(sent, i, false);
  }
  for (const Value* output : graph_.outputs) touch(output, order_.size(), false);
}

// What the list keeps is held until its block has run again.
void Lifetimes::keep_listed() {
  const passes::RematList list(graph_, {.mode = passes::RematMode::Op,
                                        .mm_again = options_.mm_again,
                                        .mm_again_of = options_.mm_again_of,
                                        .save = options_.save});
  std::unordered_map<std::string, int64_t> products;
  for (const Op* op : order_) {
    if (!ir::is_forward(op->section)) continue;
    const std::string block(ir::block_of(op->module_path));
    const auto again = recomputed_at_.find(block);
    if (again == recomputed_at_.end()) continue;
    if (ir::aliased_operand(*op) >= 0 || !list.keeps(*op, products[block])) continue;
    for (const auto& result : op->results()) {
      size_t& last = last_[result.get()];
      last = std::max(last, again->second);
    }
  }
}

size_t Lifetimes::last(const Value* stored) const {
  const auto found = last_.find(stored);
  SFSDP_CHECK(found != last_.end(), "no lifetime of %", stored->name());
  return found->second;
}

}  // namespace sfsdp::sim

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/profile.h"

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/passes/analysis/param_reads.h"
#include "sfsdp/passes/bucket/bucket.h"
#include "sfsdp/passes/fuse/fuse.h"
#include "sfsdp/passes/memory/remat_in_kernels.h"
#include "sfsdp/passes/overlap/split_collectives.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/program.h"

namespace sfsdp::tune {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Value;

// The param that a value was gathered, cast or waited for from; nullptr for others.
const Op* flat_of(const Value* value) {
  const Op* op = value->producer();
  while (op->is("cast", "wait", "all_gather.start")) op = op->operands[0]->producer();
  return op->is("param") && op->has_attr("members") ? op : nullptr;
}

// Kernels and buffers that buckets bring with them: they are counted by bucket.
bool belongs_to_bucket(const Op& op) {
  if (op.is("pack", "reduce_scatter.start")) return true;
  if (op.is("accumulate", "scale", "mul_scalar")) return op.operands[0]->type().dims.size() == 1;
  if (op.is("all_reduce.start")) return op.operands[0]->producer()->is("pack");
  if (op.is("cast", "all_gather.start", "wait")) return flat_of(op.result()) != nullptr;
  return false;
}

// With the casts that it does on its way, and the sum over micro-batches that it adds to.
bool packs(const cost::Kernel& kernel) {
  return std::ranges::any_of(kernel.ops, [](const Op* op) { return op->is("pack"); });
}

// Bytes are counted, not pages: the estimate rounds none of its own either.
const plan::MemoryOptions kBytes = {.target = {.name = "bytes", .window_alignment = 256}};

class Profiler {
 public:
  Profiler(const Graph& whole, const cost::Machine& machine)
      : graph_(one_unit(whole)),
        program_(sim::make_program(graph_, machine, cost::Execution::Fused, cost::System::Own)),
        inside_(cost::values_inside(graph_, cost::kernels_of(graph_))) {
    out_.machine = machine;
    out_.micro_batches = whole.micro_batches;
  }

  StepProfile run() {
    read_kinds();
    read_positions();
    read_clock();
    read_live();
    share_out_backward(out_);
    std::ranges::stable_sort(out_.params, {}, [](const ParamProfile& p) {
      return p.fwd_first < 0 ? std::numeric_limits<int64_t>::max() : p.fwd_first;
    });
    return std::move(out_);
  }

 private:
  static Graph one_unit(const Graph& whole) {
    Graph graph = whole.clone();
    passes::PassContext ignored;
    for (const auto& op : graph.ops())
      if (op->is("param")) op->attrs["unit"] = std::string("all");
    passes::bucket(graph, {}, ignored);
    passes::split_collectives(graph, ignored);
    passes::fuse(graph, {}, ignored);
    passes::remat_in_kernels(graph, ignored);
    return graph;
  }

  void read_kinds() {
    for (const auto& op : graph_.ops()) {
      if (!op->is("param")) continue;
      const auto& members = op->attr<std::vector<std::string>>("members");
      const auto& numels = op->attr<std::vector<int64_t>>("numels");
      KindProfile kind;
      kind.stored = static_cast<double>(ir::size_in_bytes(op->result()->type().dtype));
      kind.ranks = ir::axis_size(graph_, op->result()->type().dims[0].split).value();
      kind_of_[op.get()] = out_.kinds.size();
      first_of_.push_back(out_.params.size());
      for (size_t i = 0; i < members.size(); ++i) {
        ParamProfile p;
        p.name = members[i];
        p.kind = out_.kinds.size();
        p.elements = numels[i];
        out_.params.push_back(p);
      }
      out_.kinds.push_back(kind);
    }
    read_gradients();
    for (const sim::Collective& c : program_.collectives) {
      const Op& op = *c.op;
      const Value* sent = op.operands[0];
      if (const Op* flat = op.is("all_gather.start") ? flat_of(op.result()) : nullptr) {
        KindProfile& kind = out_.kinds[kind_of_.at(flat)];
        kind.gathered = static_cast<double>(ir::size_in_bytes(op.result()->type().dtype));
        kind.gather_group = program_.groups[c.communicator];
      } else if (const auto reduced = gradient_kind_.find(&op); reduced != gradient_kind_.end()) {
        KindProfile& kind = out_.kinds[reduced->second];
        const auto element = static_cast<double>(ir::size_in_bytes(sent->type().dtype));
        if (c.part == sim::Part::Tail) {
          kind.replicas = true;
          if (kind.reduced == 0) kind.reduced = element;
        } else {
          kind.reduction = c.kind;
          kind.once = ir::is_once(op);
          kind.reduced = element;
          kind.reduce_group = program_.groups[c.communicator];
        }
      }
    }
    for (KindProfile& kind : out_.kinds) {
      const double smallest = kind.gathered > 0 ? std::min(kind.stored, kind.gathered) : kind.stored;
      kind.alignment = std::max<int64_t>(passes::BucketOptions{}.alignment / static_cast<int64_t>(smallest), 1);
    }
    for (ParamProfile& p : out_.params) p.elements = round_up(p.elements, out_.kinds[p.kind].alignment);
  }

  // Which kind's gradient an op between pack and update holds.
  void read_gradients() {
    std::map<std::string, size_t> kind_of_name;
    for (const auto& [flat, index] : kind_of_) kind_of_name[flat->attr<std::string>("name")] = index;
    for (const auto& op : graph_.ops()) {
      if (!op->is("gradient")) continue;
      const auto kind = kind_of_name.find(op->attr<std::string>("param"));
      if (kind == kind_of_name.end()) continue;
      const Op* from = op->operands[0]->producer();
      while (from->is("wait", "accumulate", "cast", "mul_scalar") || ir::is_collective(*from)) {
        gradient_kind_[from] = kind->second;
        from = from->operands[0]->producer();
      }
      gradient_kind_[from] = kind->second;
    }
  }

  void read_positions() {
    std::unordered_map<const Value*, size_t> param_of_view;
    std::unordered_map<const Value*, int64_t> made;
    for (size_t i = 0; i < graph_.ops().size(); ++i) {
      const Op& op = *graph_.ops()[i];
      const auto at = static_cast<int64_t>(i);
      for (const auto& result : op.results()) made[result.get()] = at;
      if (op.section != Section::Init && out_.body_begin == 0) out_.body_begin = at;
      if (op.section == Section::Bwd && out_.backward_begin == 0) out_.backward_begin = at;
      if (op.section == Section::Bwd || ir::is_forward(op.section)) out_.body_end = at + 1;
      if (op.is("view"))
        if (const Op* flat = flat_of(op.operands[0])) {
          const auto& offsets = flat->attr<std::vector<int64_t>>("offsets");
          const auto place = std::ranges::find(offsets, op.attr<int64_t>("offset"));
          const size_t index = first_of_[kind_of_.at(flat)] + static_cast<size_t>(place - offsets.begin());
          param_of_view[op.result()] = index;
          note_read(out_.params[index], op.section, at);
        }
      if (op.is("pack")) {
        const size_t first = first_of_[gradient_kind_.at(&op)];
        for (size_t k = 0; k < op.operands.size(); ++k) {
          ParamProfile& p = out_.params[first + k];
          p.gradient = made.at(op.operands[k]);
          const Value* raw = ir::storage_of(op.operands[k]);
          // A cast that is part of the pack runs where that is put, and reads what is in memory.
          if (inside_.contains(raw) && raw->producer()->is("cast")) {
            p.gradient = made.at(raw->producer()->operands[0]);
            raw = ir::storage_of(raw->producer()->operands[0]);
          }
          p.gradient_made = made.at(raw);
          p.gradient_bytes = inside_.contains(raw) ? 0 : raw->type().bytes();
          raw_.insert(raw);
        }
        continue;
      }
      for (const Value* operand : op.operands) {
        const auto found = operand ? param_of_view.find(operand) : param_of_view.end();
        if (found == param_of_view.end()) continue;
        if (ir::aliased_operand(op) >= 0)
          for (const auto& result : op.results()) param_of_view[result.get()] = found->second;
        else
          note_read(out_.params[found->second], op.section, at);
      }
    }
  }

  static void note_read(ParamProfile& p, Section section, int64_t at) {
    auto& first = ir::is_forward(section) ? p.fwd_first : p.bwd_first;
    auto& last = ir::is_forward(section) ? p.fwd_last : p.bwd_last;
    if (first < 0) first = at;
    last = at;
  }

  void read_clock() {
    std::vector<double> at(graph_.ops().size() + 1);
    for (size_t k = 0; k < program_.kernels.kernels.size(); ++k) {
      const cost::Kernel& kernel = program_.kernels.kernels[k];
      if (packs(kernel)) continue;
      if (sim::part_of(kernel.ops[0]->section) == sim::Part::Last &&
          !std::ranges::all_of(kernel.ops, [](const Op* op) { return belongs_to_bucket(*op); }))
        at[static_cast<size_t>(program_.kernel_position[k])] += kernel.seconds - seconds_of_buckets(kernel);
    }
    out_.clock.assign(at.size() + 1, 0);
    for (size_t i = 0; i < at.size(); ++i) out_.clock[i + 1] = out_.clock[i] + at[i];
  }

  // Casts of shards that a kernel of other ops does too: they share no bytes with these.
  double seconds_of_buckets(const cost::Kernel& kernel) const {
    double bytes = 0;
    for (const Op* op : kernel.ops)
      if (op->is("cast") && belongs_to_bucket(*op)) bytes += cost::bytes_moved(*op);
    return bytes / (out_.machine.memory_bandwidth * out_.machine.memory_efficiency);
  }

  void read_live() {
    std::vector<int64_t>& live = out_.live;
    live.resize(2 * graph_.ops().size() + 3);
    for (const plan::Buffer& b : plan::find_buffers(graph_, kBytes).buffers) {
      if (belongs_to_bucket(*b.value->producer()) || gradient_kind_.contains(b.value->producer())) continue;
      if (raw_.contains(b.value)) continue;
      live[2 * static_cast<size_t>(b.first)] += b.bytes;
      live[2 * static_cast<size_t>(b.last) + 1] -= b.bytes;
    }
    for (size_t i = 1; i < live.size(); ++i) live[i] += live[i - 1];
    for (const auto& op : graph_.ops())
      if (op->is("param", "state")) out_.state_bytes += op->result()->type().bytes();
  }

  Graph graph_;
  sim::RankProgram program_;
  std::unordered_set<const Value*> inside_;  // kernels: no memory
  StepProfile out_;
  std::unordered_map<const Op*, size_t> kind_of_;  // of a flat param
  std::vector<size_t> first_of_;                   // by kind: its first entry in params
  std::unordered_map<const Op*, size_t> gradient_kind_;
  std::unordered_set<const Value*> raw_;  // storages of gradients before they are packed
};

}  // namespace

std::string_view to_string(Reason reason) {
  switch (reason) {
    case Reason::Named: return "named";
    case Reason::LastParameter: return "the last parameter";
    case Reason::Gather: return "forward: its gather would outlast the compute of the unit before";
    case Reason::Reduction: return "backward: its reduction would outlast the compute of the unit before";
    case Reason::Memory: return "memory: two such units would not fit";
    case Reason::Search: return "search: no other border found is faster";
  }
  return "";
}

Reason parse_reason(std::string_view text) {
  for (const Reason reason : {Reason::LastParameter, Reason::Gather, Reason::Reduction, Reason::Memory, Reason::Search})
    if (text == to_string(reason)) return reason;
  return Reason::Named;
}

double StepProfile::seconds_between(int64_t from, int64_t to) const {
  return clock[static_cast<size_t>(to)] - clock[static_cast<size_t>(from)];
}

void share_out_backward(StepProfile& profile) {
  std::vector<ParamProfile*> trained;
  for (ParamProfile& p : profile.params)
    if (p.gradient >= 0) trained.push_back(&p);
  std::ranges::stable_sort(trained, {}, &ParamProfile::gradient);
  int64_t from = profile.backward_begin;
  for (size_t i = 0; i < trained.size(); ++i) {
    const int64_t to = i + 1 < trained.size() ? std::max(from, trained[i]->gradient) : profile.body_end;
    trained[i]->backward_seconds = profile.seconds_between(from, to);
    from = to;
  }
}

StepProfile profile_step(const Graph& graph, const cost::Machine& machine) { return Profiler(graph, machine).run(); }

}  // namespace sfsdp::tune

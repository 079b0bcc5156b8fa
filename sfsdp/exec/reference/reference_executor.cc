// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/reference/reference_executor.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/lap_clock.h"
#include "sfsdp/exec/kernels.h"
#include "sfsdp/exec/op_call.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/passes/canonical/decompose.h"

namespace sfsdp::exec {

namespace {

enum Spent : size_t { kForwardBackward, kUpdate, kCommunication, kKindsOfTime };

}  // namespace

struct ReferenceExecutor::Impl {
  class Run;
  // One op, resolved: what runs it, where its operands and results live, what is dead after it.
  struct Step {
    const ir::Op* op = nullptr;
    std::optional<OpCall> call;  // of what computes
    std::vector<int> operands, results, dead_after;
    int64_t batch_input = -1;  // index in the micro-batch
    Spent spent = kForwardBackward;
  };

  const ir::Graph graph;  // of LibTorch's ops and sfsdp's own that are not canonical
  const std::vector<at::Tensor> constants;
  DataPosition position;
  std::vector<Step> steps;
  std::vector<at::Tensor> slots;
  std::vector<bool> kept_in_loop;  // by slot: made before the first micro-batch, or carried from one to the next
  std::unordered_map<const ir::Value*, int> slot_of;
  std::vector<const ir::Value*> returned;  // the graph's outputs, and what else was asked for
  RunSeconds seconds;

  Impl(const ir::Graph& g, const std::vector<at::Tensor>& c, const Groups& groups, DataPosition p, Rng rng,
       const std::vector<const ir::Value*>& more)
      : graph(passes::decomposed(g)), constants(c), position(p), returned(graph.outputs.begin(), graph.outputs.end()) {
    for (const ir::Value* value : more) returned.push_back(graph.find_value(value->name()));
    int64_t next_input = 0;
    for (const auto& op : graph.ops()) {
      Step step;
      step.op = op.get();
      if (!op->is("input", "param", "state", "constant", "accumulate")) step.call.emplace(*op, graph, groups, rng);
      if (op->is("input")) step.batch_input = next_input++;
      const auto slot = [&](const ir::Value* value) {
        return value ? slot_of.try_emplace(value, static_cast<int>(slot_of.size())).first->second : -1;
      };
      for (const ir::Value* operand : op->operands) step.operands.push_back(slot(operand));
      for (const auto& result : op->results()) step.results.push_back(slot(result.get()));
      const bool updates = op->section == ir::Section::Clip || op->section == ir::Section::Opt;
      step.spent = step.call && step.call->group() ? kCommunication : updates ? kUpdate : kForwardBackward;
      steps.push_back(std::move(step));
    }
    slots.resize(slot_of.size());
    kept_in_loop.resize(slot_of.size());
    find_deaths();
  }

  // A value dies after its last reader, one from before the first micro-batch and a sum over micro-batches in the last of them.
  void find_deaths() {
    std::vector<int> last(slots.size(), -1);
    std::vector<bool> kept(slots.size(), false);
    for (size_t i = 0; i < steps.size(); ++i) {
      for (int s : steps[i].operands)
        if (s >= 0) last[static_cast<size_t>(s)] = static_cast<int>(i);
      for (int s : steps[i].results) {
        if (last[static_cast<size_t>(s)] < 0) last[static_cast<size_t>(s)] = static_cast<int>(i);
        const ir::Op& op = *steps[i].op;
        kept[static_cast<size_t>(s)] = op.is("param", "state", "constant");
      }
    }
    // What a body reads that is made before it, and what a trip begins with, is there for the next trip.
    for (const ir::Loop& loop : ir::loops_of(graph))
      for (size_t i = 0; i <= loop.first; ++i)
        for (int s : steps[i].results)
          if (int& death = last[static_cast<size_t>(s)]; death >= static_cast<int>(loop.first))
            death = std::max(death, static_cast<int>(loop.last));
    for (const ir::Value* v : returned) kept[static_cast<size_t>(slot_of.at(v))] = true;
    for (const ir::Carry& c : graph.carries) kept[static_cast<size_t>(slot_of.at(c.next))] = true;
    for (const Step& step : steps)
      if ((step.op->section == ir::Section::Init && step.batch_input < 0) || step.op->is("accumulate"))
        for (int s : step.results) kept_in_loop[static_cast<size_t>(s)] = true;
    for (size_t s = 0; s < slots.size(); ++s)
      if (!kept[s] && last[s] >= 0) steps[static_cast<size_t>(last[s])].dead_after.push_back(static_cast<int>(s));
  }

  // The values that a loop carries, from the operands of `loop` or `end` to those that a trip, or what follows, begins with.
  void carry(const Step& from, size_t first, const Step& to) {
    std::vector<at::Tensor> values;
    for (size_t k = first; k < from.operands.size(); ++k)
      values.push_back(slots[static_cast<size_t>(from.operands[k])]);
    for (size_t k = 0; k < values.size(); ++k) put(to.results[k], std::move(values[k]));
  }

  void put(int slot, at::Tensor value) { slots[static_cast<size_t>(slot)] = std::move(value); }

  // In the buffer of the sum, which earlier micro-batches have left.
  at::Tensor accumulate(const Step& step, const at::Tensor& value, ir::Part part) {
    if (ir::beta_in(part) == 0 || graph.micro_batches == 1) return value.clone(at::MemoryFormat::Contiguous);
    return slots[static_cast<size_t>(step.results[0])].add_(value);
  }
};

// One step.
class ReferenceExecutor::Impl::Run {
 public:
  Run(ReferenceExecutor& executor, const std::vector<std::vector<at::Tensor>>& micro_batches, StepScalars scalars)
      : m_(*executor.impl_),
        executor_(executor),
        micro_batches_(micro_batches),
        scalars_(scalars),
        count_(std::ssize(micro_batches)),
        parts_(ir::parts_of_step(count_)),
        loops_(ir::loops_of(m_.graph)) {}

  void head() {
    for (Step& step : m_.steps)
      if (step.op->section == ir::Section::Init && step.batch_input < 0) run(step);
  }
  void micro_batch(int64_t number) {
    scalars_.micro_batch = number;
    const ir::Part part = part_of(number);
    auto loop = loops_.begin();
    for (size_t i = 0; i < m_.steps.size(); ++i) {
      Step& step = m_.steps[i];
      if (loop != loops_.end() && i == loop->first) {
        if (ir::runs_in(*step.op, part)) run(*loop);
        i = (loop++)->last;
        continue;
      }
      if (ir::runs_in(*step.op, part) || step.batch_input >= 0) run(step);
    }
    if (part == ir::Part::Last) return;
    for (const ir::Carry& c : m_.graph.carries)  // running statistics go on from one micro-batch to the next
      if (ir::is_repeated(c.next->producer()->section))
        m_.put(m_.slot_of.at(c.current), m_.slots[static_cast<size_t>(m_.slot_of.at(c.next))]);
  }
  void tail() {
    for (Step& step : m_.steps)
      if (step.op->section == ir::Section::Clip || step.op->section == ir::Section::Opt) run(step);
  }
  RunSeconds seconds() {
    const auto spent = clock_.seconds();
    return {spent[kForwardBackward], spent[kUpdate], spent[kCommunication]};
  }

 private:
  ir::Part part_of(int64_t micro_batch) const { return parts_[static_cast<size_t>(micro_batch) + 1]; }

  void run(Step& step) {
    const ir::Op& op = *step.op;
    clock_.switch_to(step.spent);
    std::vector<at::Tensor> operands, results;
    for (int s : step.operands) operands.push_back(s >= 0 ? m_.slots[static_cast<size_t>(s)] : at::Tensor());
    if (step.batch_input >= 0) {
      const auto& batch = micro_batches_[static_cast<size_t>(scalars_.micro_batch)];
      SFSDP_CHECK(static_cast<size_t>(step.batch_input) < batch.size(), "batch has ", batch.size(), " tensors");
      results = {batch[static_cast<size_t>(step.batch_input)].contiguous()};  // as it was traced
    } else if (op.is("param", "state")) {
      auto found = executor_.state.find(op.attr<std::string>("name"));
      SFSDP_CHECK(found != executor_.state.end(), "no state for ", op.attr<std::string>("name"));
      results = {found->second};
    } else if (op.is("constant")) {
      results = {m_.constants[static_cast<size_t>(op.attr<int64_t>("index"))]};
    } else if (op.is("accumulate")) {
      results = {m_.accumulate(step, operands[0], part_of(scalars_.micro_batch))};
    } else {
      results = step.call->run(operands, scalars_, m_.position);
    }
    check_results(results, op);
    for (size_t i = 0; i < results.size(); ++i) m_.put(step.results[i], results[i]);
    operands.clear();
    if (executor_.on_op) executor_.on_op(op, results);
    results.clear();
    bury(step);
  }

  void run(const ir::Loop& loop) {
    Step &begin = m_.steps[loop.first], &end = m_.steps[loop.last];
    const int64_t trips = trips_of(*loop.begin, m_.slots[static_cast<size_t>(begin.operands[0])]);
    m_.carry(begin, 1, begin);
    for (int64_t trip = 0; trip < trips; ++trip) {
      for (size_t i = loop.first + 1; i < loop.last; ++i) run(m_.steps[i]);
      m_.carry(end, 0, begin);
    }
    for (size_t k = 0; k < begin.results.size(); ++k)
      m_.put(end.results[k], m_.slots[static_cast<size_t>(begin.results[k])]);
    bury(end);
  }

  void bury(const Step& step) {
    const bool is_last = step.op->section == ir::Section::Init || scalars_.micro_batch + 1 == count_;
    for (int s : step.dead_after)
      if (!m_.kept_in_loop[static_cast<size_t>(s)] || is_last) m_.put(s, at::Tensor());
  }

  Impl& m_;
  ReferenceExecutor& executor_;
  const std::vector<std::vector<at::Tensor>>& micro_batches_;
  StepScalars scalars_;
  const int64_t count_;
  const std::vector<ir::Part> parts_;
  const std::vector<ir::Loop> loops_;
  LapClock<kKindsOfTime> clock_;
};

ReferenceExecutor::ReferenceExecutor(const ir::Graph& graph, const std::vector<at::Tensor>& constants, Groups groups,
                                     DataPosition position, Rng rng, std::vector<const ir::Value*> more)
    : impl_(std::make_unique<Impl>(graph, constants, groups, position, rng, more)) {}
ReferenceExecutor::~ReferenceExecutor() = default;

std::vector<at::Tensor> ReferenceExecutor::run(const std::vector<std::vector<at::Tensor>>& micro_batches,
                                               const StepScalars& scalars) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Impl& m = *impl_;
  Impl::Run step(*this, micro_batches, scalars);
  step.head();
  for (int64_t number = 0; number < std::ssize(micro_batches); ++number) step.micro_batch(number);
  step.tail();
  std::vector<at::Tensor> outputs;
  for (const ir::Value* v : m.returned) outputs.push_back(m.slots[static_cast<size_t>(m.slot_of.at(v))]);
  for (const ir::Carry& c : m.graph.carries)
    state[c.current->producer()->attr<std::string>("name")] = m.slots[static_cast<size_t>(m.slot_of.at(c.next))];
  std::ranges::fill(m.slots, at::Tensor());
  m.seconds = step.seconds();
  return outputs;
}

const ir::Graph& ReferenceExecutor::graph() const { return impl_->graph; }

const RunSeconds& ReferenceExecutor::seconds() const { return impl_->seconds; }

}  // namespace sfsdp::exec

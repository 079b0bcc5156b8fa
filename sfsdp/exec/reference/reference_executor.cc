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

ReferenceExecutor::ReferenceExecutor(const ir::Graph& graph, const std::vector<at::Tensor>& constants, Groups groups,
                                     DataPosition position, Rng rng, std::vector<const ir::Value*> more)
    : impl_(std::make_unique<Impl>(graph, constants, groups, position, rng, more)) {}
ReferenceExecutor::~ReferenceExecutor() = default;

std::vector<at::Tensor> ReferenceExecutor::run(const std::vector<std::vector<at::Tensor>>& micro_batches,
                                               const StepScalars& step_scalars) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Impl& m = *impl_;
  StepScalars scalars = step_scalars;
  LapClock<kKindsOfTime> clock;
  const int64_t count = static_cast<int64_t>(micro_batches.size());
  const std::vector<ir::Part> parts = ir::parts_of_step(count);
  const auto bury = [&](const Impl::Step& step, int64_t micro_batch) {
    for (int s : step.dead_after)
      if (!m.kept_in_loop[static_cast<size_t>(s)] || step.op->section == ir::Section::Init || micro_batch + 1 == count)
        m.put(s, at::Tensor());
  };
  const auto run_op = [&](Impl::Step& step, int64_t micro_batch) {
    const ir::Op& op = *step.op;
    clock.switch_to(step.spent);
    std::vector<at::Tensor> operands, results;
    for (int s : step.operands) operands.push_back(s >= 0 ? m.slots[static_cast<size_t>(s)] : at::Tensor());
    if (step.batch_input >= 0) {
      const auto& batch = micro_batches[static_cast<size_t>(micro_batch)];
      SFSDP_CHECK(static_cast<size_t>(step.batch_input) < batch.size(), "batch has ", batch.size(), " tensors");
      results = {batch[static_cast<size_t>(step.batch_input)].contiguous()};  // as it was traced
    } else if (op.is("param", "state")) {
      auto found = state.find(op.attr<std::string>("name"));
      SFSDP_CHECK(found != state.end(), "no state for ", op.attr<std::string>("name"));
      results = {found->second};
    } else if (op.is("constant")) {
      results = {m.constants[static_cast<size_t>(op.attr<int64_t>("index"))]};
    } else if (op.is("accumulate")) {
      results = {m.accumulate(step, operands[0], parts[static_cast<size_t>(micro_batch) + 1])};
    } else {
      results = step.call->run(operands, scalars, m.position);
    }
    check_results(results, op);
    for (size_t i = 0; i < results.size(); ++i) m.put(step.results[i], results[i]);
    operands.clear();
    if (on_op) on_op(op, results);
    results.clear();
    bury(step, micro_batch);
  };
  for (Impl::Step& step : m.steps)
    if (step.op->section == ir::Section::Init && step.batch_input < 0) run_op(step, 0);
  const std::vector<ir::Loop> loops = ir::loops_of(m.graph);
  const auto run_loop = [&](const ir::Loop& loop, int64_t micro_batch) {
    Impl::Step &begin = m.steps[loop.first], &end = m.steps[loop.last];
    const int64_t trips = trips_of(*loop.begin, m.slots[static_cast<size_t>(begin.operands[0])]);
    m.carry(begin, 1, begin);
    for (int64_t trip = 0; trip < trips; ++trip) {
      for (size_t i = loop.first + 1; i < loop.last; ++i) run_op(m.steps[i], micro_batch);
      m.carry(end, 0, begin);
    }
    for (size_t k = 0; k < begin.results.size(); ++k)
      m.put(end.results[k], m.slots[static_cast<size_t>(begin.results[k])]);
    bury(end, micro_batch);
  };
  for (int64_t micro_batch = 0; micro_batch < count; ++micro_batch) {
    scalars.micro_batch = micro_batch;
    const ir::Part part = parts[static_cast<size_t>(micro_batch) + 1];
    auto loop = loops.begin();
    for (size_t i = 0; i < m.steps.size(); ++i) {
      Impl::Step& step = m.steps[i];
      if (loop != loops.end() && i == loop->first) {
        if (ir::runs_in(*step.op, part)) run_loop(*loop, micro_batch);
        i = (loop++)->last;
        continue;
      }
      if (ir::runs_in(*step.op, part) || step.batch_input >= 0) run_op(step, micro_batch);
    }
    if (part == ir::Part::Last) break;
    for (const ir::Carry& c : m.graph.carries)  // running statistics go on from one micro-batch to the next
      if (ir::is_repeated(c.next->producer()->section))
        m.put(m.slot_of.at(c.current), m.slots[static_cast<size_t>(m.slot_of.at(c.next))]);
  }
  for (Impl::Step& step : m.steps)
    if (step.op->section == ir::Section::Clip || step.op->section == ir::Section::Opt) run_op(step, count - 1);

  std::vector<at::Tensor> outputs;
  for (const ir::Value* v : m.returned) outputs.push_back(m.slots[static_cast<size_t>(m.slot_of.at(v))]);
  for (const ir::Carry& c : m.graph.carries)
    state[c.current->producer()->attr<std::string>("name")] = m.slots[static_cast<size_t>(m.slot_of.at(c.next))];
  std::ranges::fill(m.slots, at::Tensor());
  const auto spent = clock.seconds();
  m.seconds = {spent[kForwardBackward], spent[kUpdate], spent[kCommunication]};
  return outputs;
}

const ir::Graph& ReferenceExecutor::graph() const { return impl_->graph; }

const RunSeconds& ReferenceExecutor::seconds() const { return impl_->seconds; }

}  // namespace sfsdp::exec

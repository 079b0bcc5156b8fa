// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/hazards.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/plan/verify/kernels.h"
#include "sfsdp/plan/verify/loop_bodies.h"

namespace sfsdp::plan {
namespace {

using ir::Op, ir::Value;

// Whether a pack finds it in its result already.
bool lies_in(const Op& pack, const Value& memory) {
  for (size_t k = 0; k < pack.operands.size(); ++k)
    if (ir::storage_of(pack.operands[k]) == &memory) return cost::is_inside(pack, k);
  return false;
}

// Two steps of three micro-batches, task by task in the program's order: what each reads and writes is told the memory model.
class HazardWalk {
 public:
  //   trips: of each loop
  HazardWalk(const StepPlan& plan, int64_t trips)
      : plan_(plan),
        trips_(trips),
        kernels_(cost::kernels_of(plan.graph)),
        inside_kernels_(cost::values_inside(plan.graph, kernels_)),
        clocks_(plan),
        memory_(plan, clocks_),
        loops_(plan, inside_kernels_, trips, clocks_, memory_),
        made_(plan.graph),
        made_in_(plan.graph) {}

  std::vector<std::string> check() {
    memory_.check_places();
    const std::vector<Action> program = program_of(plan_.graph, plan_.lanes, nullptr, trips_);
    for (int step = 0; step < 2; ++step) {
      begin_step(step == 0);
      for (const Action& action : program) {
        if (memory_.is_full()) return memory_.errors();
        if (action.kind == Action::Load) {
          begin_micro_batch();
          run({clocks_.host(), 0});
        } else if (action.kind == Action::Again) {
          if (Body* body =
                  loops_.with_border(*kernels_.ops.at(action.task.number)[0]))  // else check_kernels has refused it
            loops_.begin_trip(*body);
        } else if (action.kind != Action::Wait) {
          run(action.task);
        }
      }
      for (const Value* output : plan_.graph.outputs) memory_.expect(*output, "the step returns it");
    }
    return memory_.errors();
  }

 private:
  // The state is what the last step left, under the names of this one.
  void begin_step(bool first) {
    ++step_;
    for (const auto& op : plan_.graph.ops())
      if (first && op->is("param", "state", "constant", "scalar")) memory_.place(*op->result());
    if (!first) hand_over([](const ir::Carry&) { return true; }, "the next step");
  }

  // What lies in memory under the name of `next` is now `current`: what read and wrote it counts as before.
  template <class Is>
  void hand_over(Is is, const char* reader) {
    std::vector<std::pair<Content*, const Value*>> renamed;  // all at once: names may stand on both sides
    for (const ir::Carry& carry : plan_.graph.carries) {
      if (!is(carry)) continue;
      const Value& last = *ir::storage_of(carry.next);
      const Buffer *from = memory_.buffer_of(&last), *to = memory_.buffer_of(carry.current);
      memory_.expect(last, concat(reader, " reads it as %", carry.current->name()));
      Content* content = from && from == to ? memory_.holding(*to, last) : nullptr;
      if (content) renamed.emplace_back(content, carry.current);
    }
    for (const auto& [content, value] : renamed) content->value = value;
  }

  void begin_micro_batch() {
    if (loaded_ == step_)
      hand_over([](const ir::Carry& carry) { return ir::is_repeated(carry.next->producer()->section); },
                "the next micro-batch");
    loaded_ = step_;
  }

  void load_batch(const Run& run, const Clock& clock) {
    for (const auto& op : plan_.graph.ops()) {
      if (!op->is("input")) continue;
      if (const Buffer* found = memory_.buffer_of(op->result()))
        memory_.replace(*found, *op->result(), run, &clock);
      else
        memory_.error(concat("%", op->result()->name(), " has no place in memory\n  expected one"));
    }
  }

  void run(const Task& task) {
    const Run run = clocks_.begin(task);
    const Clock& clock = clocks_.now(task.lane);
    if (task.lane == clocks_.host())
      load_batch(run, clock);
    else if (task.lane == 0)
      run_kernel(kernels_.ops.at(task.number), run, clock);
    else
      run_collective(*plan_.lanes[task.lane - 1].collectives.at(task.number), run, clock);
    clocks_.finish(task, run);
  }

  void run_kernel(const std::vector<const Op*>& ops, const Run& run, const Clock& clock) {
    Body* body = loops_.with_border(*ops[0]);
    if (body && ops[0] == body->loop.end) loops_.end(*body, run, clock);
    run_ops(ops, run, clock);
    if (body && ops[0] == body->loop.begin) loops_.begin(*body, run, clock);
  }

  void run_collective(const Op& op, const Run& run, const Clock& clock) {
    loops_.check_begun(op, run, clock);
    run_ops({&op}, run, clock);
  }

  // All is read before anything is written, but for what stays inside.
  void run_ops(const std::vector<const Op*>& ops, const Run& run, const Clock& clock) {
    ++kernel_;
    for (const Op* op : ops)
      for (const auto& result : op->results()) made_in_[result.get()] = kernel_;
    for (const Op* op : ops) {
      for (const Value* operand : op->operands)
        if (operand && !is_own(ir::storage_of(operand))) memory_.read(*ir::storage_of(operand), *op, run, clock);
      if (op->is("accumulate") && made_[op->result()] == step_) read_sum(*op, run, clock);
    }
    for (const Op* op : ops)
      for (const auto& result : op->results()) {
        const Buffer* found = memory_.buffer_of(result.get());
        // What stays inside is not written, though it may be named by the buffer that its op was given: another result of the
        // kernel may lie there. Where it has none, whoever reads it is told.
        if (!found || inside_kernels_.contains(result.get())) continue;
        check_operands(ops, *result, *found);
        memory_.replace(*found, *result, run, &clock);
        made_[result.get()] = step_;
      }
  }

  // What earlier micro-batches have added up.
  void read_sum(const Op& op, const Run& run, const Clock& clock) {
    const Buffer* sum = memory_.buffer_of(op.result());
    if (sum && !sum->carried)
      memory_.error(concat(ir::name_of(op),
                           " adds to a sum that is not carried from one micro-batch to the next\n  expected a ",
                           "buffer that is"));
    memory_.read(*op.result(), op, run, clock);
  }

  bool is_own(const Value* value) const { return made_in_[value] == kernel_; }

  // What a kernel writes over what it reads: in place, element by element.
  void check_operands(const std::vector<const Op*>& ops, const Value& result, const Buffer& written) {
    std::unordered_set<const Value*> seen;
    for (const Op* op : ops)
      for (const Value* operand : op->operands) {
        const Value* memory = operand ? ir::storage_of(operand) : nullptr;
        const Buffer* found = memory ? memory_.buffer_of(memory) : nullptr;
        if (!found || is_own(memory) || !seen.insert(memory).second) continue;
        const Buffer& there = *found;
        if (op->is("pack") && op->result() == &result && lies_in(*op, *memory)) continue;  // left as it is
        if (there.region != written.region || there.offset >= written.offset + written.bytes ||
            written.offset >= there.offset + there.bytes)
          continue;
        if (there.offset != written.offset)
          memory_.error(concat('%', result.name(), " is written over a part of %", memory->name(),
                               ", which its kernel reads\n  expected the same place, or another one"));
        else if (const std::string wrong = check_written_over(ops, *memory, result); !wrong.empty())
          memory_.error(wrong);
      }
  }

  const StepPlan& plan_;
  const int64_t trips_;
  const cost::Kernels kernels_;
  const std::unordered_set<const Value*> inside_kernels_;  // made and read by one kernel alone
  LaneClocks clocks_;
  MemoryModel memory_;
  LoopBodies loops_;
  size_t loaded_ = 0;               // the latest step that has a batch
  ir::ValueTable<size_t> made_;     // the latest step that has made it
  ir::ValueTable<size_t> made_in_;  // the latest run of a kernel that makes it
  size_t step_ = 0, kernel_ = 0;    // those that are running, from 1 on
};

}  // namespace

std::vector<std::string> check_hazards(const StepPlan& plan) {
  std::vector<std::string> errors;
  for (const int64_t trips : trips_to_check(plan.graph))
    for (std::string& error : HazardWalk(plan, trips).check())
      if (std::ranges::find(errors, error) == errors.end()) errors.push_back(std::move(error));
  return errors;
}

}  // namespace sfsdp::plan

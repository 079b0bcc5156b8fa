// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/loop_bodies.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::plan {

using ir::Op, ir::Value;

namespace {

std::vector<const Value*> begun_with(const Body& body) {
  std::vector<const Value*> values;
  for (const auto& carried : body.loop.begin->results()) values.push_back(carried.get());
  return values;
}
std::vector<const Value*> left_by(const Op& end) {
  std::vector<const Value*> values;
  for (const Value* next : end.operands) values.push_back(ir::storage_of(next));
  return values;
}

}  // namespace

LoopBodies::LoopBodies(const StepPlan& plan, const std::unordered_set<const Value*>& inside_kernels, int64_t trips,
                       const LaneClocks& clocks, MemoryModel& memory)
    : plan_(plan), trips_(trips), clocks_(clocks), memory_(memory), position_(plan.graph), collective_(plan.graph) {
  for (size_t i = 0; i < plan_.graph.ops().size(); ++i) position_[plan_.graph.ops()[i].get()] = i;
  for (size_t lane = 0; lane < plan_.lanes.size(); ++lane)
    for (size_t i = 0; i < plan_.lanes[lane].collectives.size(); ++i)
      collective_[plan_.lanes[lane].collectives[i]] = Task{lane + 1, i};
  for (const ir::Loop& loop : ir::loops_of(plan_.graph)) {
    Body body{.loop = loop, .reads = {}, .makes = {}};
    std::unordered_set<const Value*> seen;
    const auto is_carried = [&](const Value* value) {
      return std::ranges::any_of(loop.begin->results(), [&](const auto& carried) {
        return memory_.buffer_of(value) == memory_.buffer_of(carried.get());
      });
    };
    for (size_t i = loop.first + 1; i < loop.last; ++i) {
      const Op& op = *plan_.graph.ops()[i];
      for (const Value* operand : op.operands)
        if (const Value* storage = operand ? ir::storage_of(operand) : nullptr;
            storage && position_[storage->producer()] < loop.first && seen.insert(storage).second)
          body.reads.push_back(storage);
      for (const auto& result : op.results())
        if (memory_.buffer_of(result.get()) && !inside_kernels.contains(result.get()) && !is_carried(result.get()))
          body.makes.push_back(result.get());
    }
    bodies_.push_back(std::move(body));
  }
}

Body* LoopBodies::with_border(const Op& op) {
  const auto found =
      std::ranges::find_if(bodies_, [&](const Body& b) { return b.loop.begin == &op || b.loop.end == &op; });
  return found == bodies_.end() ? nullptr : &*found;
}

void LoopBodies::begin_trip(const Body& body) { rename(left_by(*body.loop.end), begun_with(body), body); }

void LoopBodies::rename(const std::vector<const Value*>& from, const std::vector<const Value*>& to, const Body& body) {
  std::vector<Content*> contents;
  for (const Value* value : from) {
    const Buffer* found = memory_.buffer_of(value);
    contents.push_back(found ? memory_.holding(*found, *value) : nullptr);
    if (found && !contents.back())
      memory_.error(concat(place_of(*found), " holds ", memory_.held_at(*found), " where a trip of ",
                           ir::name_of(*body.loop.begin), " ends\n  expected %", value->name()));
  }
  for (size_t k = 0; k < contents.size(); ++k)
    if (contents[k]) contents[k]->value = to[k];
}

// Both tasks of a loop touch what its body may touch, so that all outside is ordered with them, however many trips there are.
void LoopBodies::touch(const Body& body, const Op& op, const Run& run, Clock clock) {
  for (const Value* value : body.reads) memory_.read(*value, op, run, clock);
  clock[run.lane] = run.number;  // values of the body may share memory
  for (const Value* value : body.makes) memory_.replace(*memory_.buffer_of(value), *value, run, &clock);
}

void LoopBodies::begin(Body& body, const Run& run, const Clock& clock) {
  touch(body, *body.loop.begin, run, clock);
  body.begun = run;
}

// Without a trip what it carries goes on as it was. Else the lanes of its collectives are over with them.
void LoopBodies::end(const Body& body, const Run& run, const Clock& clock) {
  const Op& op = *body.loop.end;
  if (trips_ == 0) rename(begun_with(body), left_by(op), body);
  for (size_t i = body.loop.first + 1; trips_ > 0 && i < body.loop.last; ++i) {
    const Op* inner = plan_.graph.ops()[i].get();
    if (!ir::is_collective(*inner)) continue;
    const Task task = collective_[inner];
    if (!is_over(clocks_.latest(task), clock))
      memory_.error(concat(ir::name_of(op), " may come before lane ", clocks_.name_of(task.lane), " is over with ",
                           ir::name_of(*inner), " of its body\n  expected an edge between them"));
  }
  touch(body, op, run, clock);
}

void LoopBodies::check_begun(const Op& op, const Run& run, const Clock& clock) {
  for (const Body& body : bodies_)
    if (body.loop.has(position_[&op]) && !is_over(body.begun, clock))
      memory_.error(concat(ir::name_of(op), " on lane ", clocks_.name_of(run.lane), " may come before ",
                           ir::name_of(*body.loop.begin),
                           " has read the number of trips\n  expected an edge between them"));
}

}  // namespace sfsdp::plan

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/reference.h"

#include <cmath>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::plan::machine {
namespace {

using ir::interp::Array;

std::string difference(const Array& got, const Array& expected) {
  for (size_t i = 0; i < expected.data.size(); ++i)
    if (got.data.size() != expected.data.size() || got.data[i] != expected.data[i])
      if (!(std::isnan(got.data[i]) && std::isnan(expected.data[i])))
        return concat("element ", i, " is ", got.data[i], ", expected ", expected.data[i]);
  return "";
}

}  // namespace

Reference interpret(const ir::Graph& graph, const Edit& edit) {
  Reference reference;
  for (int step = 0; step < 2; ++step) {
    std::vector<Inputs> inputs = ir::interp::seeded_inputs(graph, 7 + static_cast<uint64_t>(step));
    if (edit) edit(inputs);
    for (size_t rank = 0; rank < inputs.size() && step > 0; ++rank) {
      for (const auto& op : graph.ops())
        if (op->is("param", "state")) {
          const auto& name = op->attr<std::string>("name");
          inputs[rank][name] = reference.batches[0][rank].at(name);
        }
      for (const auto& [name, array] : reference.steps[0].ranks[rank].carried) inputs[rank][name] = array;
    }
    reference.batches.push_back(std::move(inputs));
    reference.steps.push_back(ir::interp::run(graph, reference.batches.back(), {.lr = std::ldexp(0.125, -step)}));
  }
  return reference;
}

std::string faults_of(const StepPlan& plan, const Reference& reference, uint64_t schedule) {
  const Outcome outcome = run(plan, reference.batches, {.schedule = schedule});
  if (!outcome.faults.empty()) return join(outcome.faults, "\n");
  for (size_t step = 0; step < reference.steps.size(); ++step)
    for (size_t rank = 0; rank < reference.steps[step].ranks.size(); ++rank) {
      const RankResult &got = outcome.steps[step][rank], &expected = reference.steps[step].ranks[rank];
      if (got.outputs.empty() && got.carried.empty()) continue;  // lanes ran on
      for (size_t i = 0; i < expected.outputs.size(); ++i)
        if (const std::string d = difference(got.outputs[i], expected.outputs[i]); !d.empty())
          return concat("step ", step, ", rank ", rank, ", output ", i, ": ", d);
      for (const auto& [name, array] : expected.carried)
        if (const std::string d = difference(got.carried.at(name), array); !d.empty())
          return concat("step ", step, ", rank ", rank, ", ", name, ": ", d);
    }
  return "";
}

std::string faults_under(const StepPlan& plan, uint64_t schedules, const Edit& edit) {
  const StepPlan read = parse_plan(print(plan));
  if (print(read) != print(plan)) return concat("the text reads back as\n", print(read), "not as\n", print(plan));
  const Reference reference = interpret(read.graph, edit);
  for (uint64_t schedule = 0; schedule < schedules; ++schedule)
    if (const std::string faults = faults_of(read, reference, schedule); !faults.empty())
      return concat("schedule ", schedule, ": ", faults);
  return "";
}

}  // namespace sfsdp::plan::machine

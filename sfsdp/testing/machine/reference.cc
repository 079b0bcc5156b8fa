// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <future>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/access.h"

namespace sfsdp::plan::machine {
namespace {

using ir::interp::Array;

// Some steps by the interpreter, each from the state that the one before leaves.
struct Reference {
  std::vector<std::vector<Inputs>> batches;
  std::vector<ir::interp::RunResult> steps;
};

Reference interpret(const ir::Graph& graph, const Comparison& comparison) {
  Reference reference;
  for (int64_t step = 0; step < comparison.steps; ++step) {
    std::vector<Inputs> inputs = ir::interp::seeded_inputs(graph, 7 + static_cast<uint64_t>(step));
    if (comparison.edit) comparison.edit(inputs);
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      for (const auto& op : graph.ops()) {
        if (!op->is("param", "state", "constant")) continue;
        const std::string name =
            op->is("constant") ? concat("constant.", op->attr<int64_t>("index")) : op->attr<std::string>("name");
        Array& array = inputs[rank].at(name);
        if (step > 0) array = reference.batches[0][rank].at(name);
        if (op->is("state"))
          for (double& x : array.data) x = std::abs(x);
      }
      if (step > 0)
        for (const auto& [name, array] : reference.steps.back().ranks[rank].carried) inputs[rank][name] = array;
    }
    reference.batches.push_back(std::move(inputs));
    reference.steps.push_back(
        ir::interp::run(graph, reference.batches.back(),
                        {.host = {.lr = std::ldexp(Options{}.lr, -static_cast<int>(step)), .step = step + 1},
                         .other = comparison.other}));
  }
  return reference;
}

std::string difference(const Array& got, const Array& expected) {
  if (got.data.size() != expected.data.size())
    return concat(got.data.size(), " elements, expected ", expected.data.size());
  for (size_t i = 0; i < expected.data.size(); ++i)
    if (got.data[i] != expected.data[i] && !(std::isnan(got.data[i]) && std::isnan(expected.data[i])))
      return concat("element ", i, " is ", got.data[i], ", expected ", expected.data[i]);
  return "";
}

std::string difference(const RankResult& got, const RankResult& expected) {
  for (size_t i = 0; i < expected.outputs.size(); ++i)
    if (const std::string d = difference(got.outputs[i], expected.outputs[i]); !d.empty())
      return concat("output ", i, ": ", d);
  for (const auto& [name, array] : expected.carried)
    if (const std::string d = difference(got.carried.at(name), array); !d.empty()) return concat(name, ": ", d);
  return "";
}

// Where all is nan or infinite, everything is equal to it.
void check_finite(const RankResult& result) {
  const auto some = [](const Array& array) {
    return array.data.empty() || std::ranges::any_of(array.data, [](double x) { return std::isfinite(x); });
  };
  for (size_t i = 0; i < result.outputs.size(); ++i)
    if (!some(result.outputs[i])) throw UserError(concat("output ", i, " holds no finite number\n  expected some"));
  for (const auto& [name, array] : result.carried)
    if (!some(array)) throw UserError(concat(name, " holds no finite number after a step\n  expected some"));
}

std::string find_under(const Prepared& plan, const Reference& reference, const Options& options) {
  const Outcome outcome = run(plan, reference.batches, options);
  if (!outcome.faults.empty()) return join(outcome.faults, "\n");
  for (size_t step = 0; step < reference.steps.size(); ++step)
    for (size_t rank = 0; rank < reference.steps[step].ranks.size(); ++rank) {
      const RankResult& got = outcome.steps[step][rank];
      if (got.outputs.empty() && got.carried.empty()) continue;  // lanes ran on
      if (const std::string d = difference(got, reference.steps[step].ranks[rank]); !d.empty())
        return concat("step ", step, ", rank ", rank, ", ", d);
    }
  return "";
}

std::string fault_under(const Prepared& plan, const Reference& reference, const Options& options) {
  try {
    return find_under(plan, reference, options);
  } catch (const std::exception& error) {  // a value without a place, or an index that is none
    return error.what();
  }
}

// Kernels are written by the access maps, so an op that was measured to read more than its own element, pair or row is one whose map
// is wrong; the machine itself goes by what it has measured, and would take such a kernel for one of larger blocks.
std::string beyond_map(const MeasuredOps& measured) {
  for (const auto& [op, reads] : measured) {
    const ir::OpAccess access(*op);
    const int64_t width = std::max({access.rows().width, access.group(), int64_t{1}});
    if (access.is_by_place() && reads.by_blocks && reads.width > width)
      return concat(ir::name_of(*op), " reads blocks of ", reads.width, " elements\n  expected ", width,
                    ", as its access map says");
  }
  return "";
}

}  // namespace

std::string find_difference(const StepPlan& plan, const Comparison& comparison) {
  const std::string text = print(plan);
  const StepPlan read = parse_plan(text);
  if (print(read) != text) return "the plan's text reads back as another one";
  const Reference reference = interpret(read.graph, comparison);
  for (const RankResult& rank : reference.steps[0].ranks) check_finite(rank);
  const Prepared prepared(read, comparison.steps);
  std::vector<std::string> found(comparison.schedules);
  std::atomic<uint64_t> next = 0;
  MeasuredOps measured_by[2];
  const auto run_some = [&](MeasuredOps& measured) {
    for (uint64_t i = next++; i < comparison.schedules; i = next++)
      found[i] =
          fault_under(prepared, reference,
                      {.schedule = comparison.first_schedule + i, .other = comparison.other, .measured = &measured});
  };
  const auto beside = std::async(std::launch::async, run_some, std::ref(measured_by[1]));  // on the second core
  run_some(measured_by[0]);
  beside.wait();
  const auto first = std::ranges::find_if(found, [](const std::string& fault) { return !fault.empty(); });
  if (first == found.end()) return concat(beyond_map(measured_by[0]), beyond_map(measured_by[1]));
  return concat("schedule ", comparison.first_schedule + static_cast<uint64_t>(first - found.begin()), ": ", *first);
}

}  // namespace sfsdp::plan::machine

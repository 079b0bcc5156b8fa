// SPDX-License-Identifier: BSD-3-Clause
// Programs of all ops that LibTorch's kernels for CPUs compute, with a row in the op set and without, executed by the plan
// machine: fused kernels, and results that lie over what their kernel reads, are torn.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/testing/any_ops.h"
#include "sfsdp/testing/libtorch_kernels_torch.h"
#include "sfsdp/testing/machine/reference.h"

namespace sfsdp::testing {
namespace any_ops_on_machine_test {

// Opcodes whose templates cannot run, and a part of what LibTorch says.
const std::map<std::string, std::string> kCannotRun = {
    {"aten._fused_dropout", "from the 'CPU' backend"},  // a kernel for GPUs alone
    {"aten.some_new_op", "LibTorch has no such op"},    // stands for one that no LibTorch has yet
};

// Those that run, but refuse numbers that a result may leave in an operand's place: torn, their kernel cannot be evaluated again.
const std::map<std::string, std::string> kRefusesResults = {
    {"aten.normal.Tensor_Tensor", "expects all elements of std >= 0.0"},
    {"aten.multilabel_margin_loss_backward", "'is_target' is out of range"},
};

bool holds(const std::string& line, const std::map<std::string, std::string>& opcodes) {
  return std::ranges::any_of(opcodes, [&](const auto& op) { return line.find(op.first + ' ') != std::string::npos; });
}

std::vector<std::string> runnable_templates() {
  std::vector<std::string> lines = op_templates();
  std::erase_if(lines, [](const std::string& line) { return holds(line, kCannotRun) || holds(line, kRefusesResults); });
  return lines;
}

plan::StepPlan plan_of(ir::Graph graph, const char* fuse) {
  passes::run_passes(graph, passes::parse_passes(fuse));
  return plan::make_plan(std::move(graph));
}

std::string difference(const plan::StepPlan& plan, uint64_t first, uint64_t schedules) {
  return plan::machine::find_difference(plan,
                                        {.first_schedule = first, .schedules = schedules, .other = run_in_libtorch});
}

// What the program's interpretation throws; "" where it runs.
std::string refusal_of(const ir::Graph& graph) {
  try {
    ir::interp::run(graph, ir::interp::seeded_inputs(graph, 1), {.other = run_in_libtorch});
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST_CASE("any ops on the machine: each template runs, but for those that are named, and each of those cannot") {
  std::set<std::string> refused;
  for (const std::string& line : op_templates()) {
    CAPTURE(line);
    const std::string refusal = refusal_of(program_of({line}));
    if (!holds(line, kCannotRun)) CHECK(refusal == "");
    for (const auto& [opcode, reason] : kCannotRun)
      if (line.find(opcode + ' ') != std::string::npos) {
        CHECK(refusal.find(reason) != std::string::npos);
        refused.insert(opcode);
      }
  }
  CHECK(refused.size() == kCannotRun.size());
}

TEST_CASE("any ops on the machine: those that are left out of torn kernels do refuse what they have written") {
  for (const auto& [opcode, reason] : kRefusesResults) {
    CAPTURE(opcode);
    std::string line = *std::ranges::find_if(
        op_templates(), [&](const std::string& text) { return text.find(opcode + ' ') != std::string::npos; });
    const plan::StepPlan plan = plan_of(program_of({line, "%$ = aten.neg %A : f32[4, 4]"}), "fuse scope=none");
    CHECK(difference(plan, 0, 20).find(reason) != std::string::npos);
  }
}

// Between two pointwise ops, so that kernels take it in where they can, and its results may lie over its operands.
TEST_CASE("any ops on the machine: each template, alone and in kernels with others, is what the interpreter computes") {
  size_t in_place = 0;
  for (const std::string& line : runnable_templates()) {
    CAPTURE(line);
    for (const char* fuse : {"fuse scope=none", "fuse"}) {
      const plan::StepPlan plan =
          plan_of(program_of({"%$ = aten.sin %A : f32[4, 4]", line, "%$ = aten.cos %A : f32[4, 4]"}), fuse);
      in_place += plan.memory.inside.size();
      CHECK(difference(plan, 0, 20) == "");
    }
  }
  CHECK(in_place > 200);
}

TEST_CASE("any ops on the machine: random programs of all of them are what the interpreter computes") {
  std::vector<std::string> lines = runnable_templates();
  // What makes numbers of nan and infinity is drawn often, or no number would be left.
  const std::string finite = *std::ranges::find_if(lines, [](const std::string& line) {
    return line.find("aten.nan_to_num %A : f32[4, 4]\n%$ =") != std::string::npos;
  });
  lines.insert(lines.end(), lines.size() / 4, finite);
  size_t ran = 0, without_number = 0, in_place = 0, fused = 0;
  std::set<std::string> opcodes;
  for (uint64_t seed = 0; ran < 320; ++seed) {
    CAPTURE(seed);
    ir::Graph graph = any_ops_program(seed, lines);
    graph.micro_batches = seed % 2 == 0 ? 1 : 3;
    const plan::StepPlan plan = plan_of(std::move(graph), seed % 4 == 0 ? "fuse scope=module" : "fuse");
    std::string found;
    try {
      found = difference(plan, seed, 20);
    } catch (const UserError& error) {
      const std::string what = error.what();
      const bool is_of_numbers = what.find("holds no finite number") != std::string::npos ||
                                 what.find("expected data that this op takes") != std::string::npos;
      REQUIRE_MESSAGE(is_of_numbers, what);
      REQUIRE(++without_number < 300);
      continue;
    }
    CHECK_MESSAGE(found == "", found, "\n", ir::print(plan.graph));
    ++ran;
    in_place += plan.memory.inside.size();
    std::set<int64_t> kernels;
    for (const auto& op : plan.graph.ops()) {
      opcodes.insert(op->opcode.str());
      if (const auto* kernel = op->find_attr<int64_t>("kernel")) fused += kernels.insert(*kernel).second ? 0 : 1;
    }
  }
  MESSAGE(ran, " programs of ", opcodes.size(), " opcodes, ", in_place, " results in place, ", fused, " ops fused, ",
          without_number, " programs without a number");
  CHECK(opcodes.size() > 250);
  CHECK(in_place > 600);
  CHECK(fused > 600);
}

}  // namespace any_ops_on_machine_test
}  // namespace sfsdp::testing

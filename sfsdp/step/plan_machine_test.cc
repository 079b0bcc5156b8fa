// SPDX-License-Identifier: BSD-3-Clause
// The plan machine with LibTorch's kernels: ops whose results a planner that took them for pointwise would write over what they read.
#include "sfsdp/testing/machine/plan_machine.h"

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/libtorch_kernels_torch.h"
#include "sfsdp/testing/machine/reference.h"
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::plan::machine {
namespace plan_machine_test {

std::string faults_of(const StepPlan& plan) {
  return find_difference(plan, {.steps = 1, .other = testing::run_in_libtorch});
}

// The same where `result` is written over `operand`.
std::string faults_of(const std::string& graph, const std::string& result, const std::string& operand) {
  StepPlan plan = make_plan(ir::parse_or_throw(graph));
  const ir::Value *value = plan.graph.find_value(result), *host = plan.graph.find_value(operand);
  std::erase_if(plan.memory.inside, [&](const Inside& i) { return i.value == value; });
  std::erase_if(plan.memory.buffers, [&](const Buffer& b) { return b.value == value; });
  plan.memory.inside.push_back({value, host, 0});
  return faults_of(plan);
}

TEST_CASE(
    "plan machine: a block of Llama under HSDP 2 x 2 is what the interpreter computes, with 1 and 3 micro-batches") {
  std::ifstream file(testing::source_dir() + "/sfsdp/plan/testdata/llama_step.txt");
  std::stringstream text;
  text << file.rdbuf();
  for (const int64_t micro_batches : {1, 3}) {
    CAPTURE(micro_batches);
    ir::Graph graph = ir::parse_or_throw(text.str());
    graph.micro_batches = micro_batches;
    CHECK(faults_of(make_plan(std::move(graph))) == "");
  }
}

TEST_CASE("plan machine: cumprod over rows, written over its operand, reads what it has written") {
  const char* const kGraph = R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[6, 8]
    fwd:
      %a = aten.mul.Scalar %x other=0.5 kernel=0 : f32[6, 8]
      %y = aten.cumprod %a dim=0 kernel=1 : f32[6, 8]
      %end = aten.neg %y kernel=2 : f32[6, 8]
      return %end
  )";
  CHECK(faults_of(kGraph, "y", "a").find("aten.cumprod") != std::string::npos);
}

TEST_CASE("plan machine: the input gradient of batch norm, written over what the kernel reduces, is another one") {
  const auto graph = [](const std::string& activation) {
    return concat(
        R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[4, 3, 5]
      %g = input name=g : f32[4, 3, 5]
      %w = input name=w : f32[3]
      %mean = input name=mean : f32[3]
      %rstd = input name=rstd : f32[3]
    fwd:
      %a = aten.mul.Scalar %x other=0.5 kernel=0 : f32[4, 3, 5]
      %h = aten.mul.Scalar %g other=0.5 kernel=1 : f32[4, 3, 5]
      %dx, %dw, %db = aten.native_batch_norm_backward %h, )",
        activation,
        R"(, %w, none, none, %mean, %rstd eps=1e-05 kernel=2 output_mask=[true, true, true] train=true : f32[4, 3, 5], f32[3], f32[3]
      %end = aten.neg %dx kernel=3 : f32[4, 3, 5]
      return %end, %dw, %db
  )");
  };
  CHECK(faults_of(graph("%a"), "dx", "a").find("native_batch_norm_backward") != std::string::npos);
  CHECK(faults_of(graph("%a"), "dx", "h").find("native_batch_norm_backward") != std::string::npos);
}

}  // namespace plan_machine_test
}  // namespace sfsdp::plan::machine

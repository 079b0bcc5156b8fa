// SPDX-License-Identifier: BSD-3-Clause
// The plan machine with LibTorch's kernels: ops whose results a planner that took them for pointwise would write over what they read.
#include "sfsdp/testing/machine/plan_machine.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/aten_call.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::plan::machine {
namespace {

using ir::interp::Array;

at::Tensor to_tensor(const Array& array) {
  return at::tensor(array.data, at::kDouble).reshape(array.shape).to(capture::scalar_type_of(array.dtype));
}

Array to_array(const at::Tensor& tensor, const ir::Type& type) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous();
  return {
      type.dtype, tensor.sizes().vec(), {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()}};
}

std::vector<Array> run_in_libtorch(const ir::Op& op, std::span<const Array* const> operands) {
  std::vector<at::Tensor> in;
  for (const Array* operand : operands) in.push_back(operand ? to_tensor(*operand) : at::Tensor());
  std::vector<Array> out;
  const std::vector<at::Tensor> results = exec::AtenCall(op).run(in);
  for (size_t i = 0; i < results.size(); ++i)
    out.push_back(to_array(results[i], op.result(static_cast<int>(i))->type()));
  return out;
}

const ir::interp::RunOptions kInLibtorch = {.other = run_in_libtorch};

bool is_same(const Array& a, const Array& b) {
  return a.shape == b.shape && std::ranges::equal(a.data, b.data, [](double x, double y) {
           return x == y || (std::isnan(x) && std::isnan(y));
         });
}

// What the machine finds under 20 schedules; "": nothing, and it computes what the interpreter does, bit for bit.
std::string faults_of(const StepPlan& plan) {
  const StepPlan read = parse_plan(print(plan));
  const std::vector<std::vector<Inputs>> batches = {ir::interp::seeded_inputs(read.graph, 3)};
  const ir::interp::RunResult expected = ir::interp::run(read.graph, batches[0], kInLibtorch);
  for (uint64_t schedule = 0; schedule < 20; ++schedule) {
    const Outcome outcome = run(read, batches, {.schedule = schedule, .other = run_in_libtorch});
    if (!outcome.faults.empty()) return concat("schedule ", schedule, ": ", join(outcome.faults, "\n"));
    for (size_t rank = 0; rank < expected.ranks.size(); ++rank) {
      const RankResult &got = outcome.steps[0][rank], &is = expected.ranks[rank];
      const std::string where = concat("schedule ", schedule, ", rank ", rank, ": ");
      for (size_t i = 0; i < is.outputs.size(); ++i)
        if (!is_same(got.outputs[i], is.outputs[i]))
          return concat(where, "output ", i, " is ", got.outputs[i], ", expected ", is.outputs[i]);
      for (const auto& [name, array] : is.carried)
        if (!is_same(got.carried.at(name), array))
          return concat(where, name, " is ", got.carried.at(name), ", expected ", array);
    }
  }
  return "";
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

}  // namespace

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

}  // namespace sfsdp::plan::machine

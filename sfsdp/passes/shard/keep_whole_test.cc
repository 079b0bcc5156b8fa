// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/shard/keep_whole.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/pipeline.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/interp/interpreter.h"
#include "sfsdp/testing/sharded_step.h"

namespace sfsdp::passes {
namespace {

using ir::interp::Array, ir::interp::Inputs;
using testing::expect_diagnostic, testing::expect_unchanged, testing::Param, testing::sharded_step_text;

std::string after_keep_whole(const std::string& text) {
  ir::Graph graph = ir::parse_or_throw(text);
  CHECK(run_passes(graph, parse_passes("keep_whole"))[0].changed);
  const std::string once = ir::print(graph);
  CHECK_FALSE(run_passes(graph, parse_passes("keep_whole"))[0].changed);
  CHECK(ir::print(graph) == once);
  return once;
}

TEST_CASE("keep_whole: the gather moves after the update, in the compute dtype, into the carried buffer") {
  CHECK(after_keep_whole(testing::dedent(R"(
    graph mesh [dp_shard=2] view local
      %w.m = state name=w.m : f32[2/dp_shard, 2]
      %w = param name=w rows=4 : f32[2/dp_shard, 2] at w
    fwd:
      %w.cast = cast %w : bf16[2/dp_shard, 2] at w
      %w.full = all_gather %w.cast axis=dp_shard dim=0 : bf16[4, 2] at w
      %y = aten.relu %w.full : bf16[4, 2] at w
    bwd:
      %w.full.1 = all_gather %w.cast axis=dp_shard dim=0 : bf16[4, 2] at w
      %g = mul_scalar %w.full.1 value=2.0 : bf16[4, 2] at w
      %g.f = cast %g : f32[4, 2] at w
      %g.rs = reduce_scatter %g.f axis=dp_shard dim=0 : f32[2, 2] at w
      %g.acc = accumulate %g.rs : f32[2, 2] at w
    opt:
      %nf = full value=0.0 : f32[]
      %w.new, %w.m.new = sgd %w, %w.m, %g.acc, %nf donates=[0, 1] momentum=0.5 weight_decay=0.0 : f32[2/dp_shard, 2], f32[2/dp_shard, 2] at w
      return %y
      carry %w = %w.new
      carry %w.m = %w.m.new
  )")) == testing::dedent(R"(
    graph mesh [dp_shard=2] view local
      %w.m = state name=w.m : f32[2/dp_shard, 2]
      %w.whole = state name=w.whole whole_of=w : bf16[4, 2] at w
      %w = param name=w rows=4 : f32[2/dp_shard, 2] at w
    fwd:
      %y = aten.relu %w.whole : bf16[4, 2] at w
    bwd:
      %g = mul_scalar %w.whole value=2.0 : bf16[4, 2] at w
      %g.f = cast %g : f32[4, 2] at w
      %g.rs = reduce_scatter %g.f axis=dp_shard dim=0 : f32[2, 2] at w
      %g.acc = accumulate %g.rs : f32[2, 2] at w
    opt:
      %nf = full value=0.0 : f32[]
      %w.new, %w.m.new = sgd %w, %w.m, %g.acc, %nf donates=[0, 1] momentum=0.5 weight_decay=0.0 : f32[2/dp_shard, 2], f32[2/dp_shard, 2] at w
      %w.new.cast = cast %w.new : bf16[2/dp_shard, 2] at w
      %w.whole.new = all_gather %w.new.cast, %w.whole axis=dp_shard dim=0 donates=[1] : bf16[4, 2] at w
      return %y
      carry %w = %w.new
      carry %w.m = %w.m.new
      carry %w.whole = %w.whole.new
  )"));
}

TEST_CASE("keep_whole: an evaluation reads the whole copy and carries nothing; a gather of activations stays") {
  const std::string text = after_keep_whole(testing::dedent(R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w rows=4 : f32[2/dp_shard, 2]
      %x = input name=x : f32[2, 2]
    fwd:
      %x.full = all_gather %x axis=dp_shard dim=0 : f32[4, 2]
      %w.full = all_gather %w axis=dp_shard dim=0 : f32[4, 2]
      %y = aten.mul.Tensor %x.full, %w.full : f32[4, 2]
      return %y
  )"));
  CHECK(text.find("aten.mul.Tensor %x.full, %w.whole") != std::string::npos);
  CHECK(text.find("carry") == std::string::npos);
  CHECK(text.find("all_gather %w") == std::string::npos);
  expect_unchanged("keep_whole", R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[2, 2]
      %x = input name=x : f32[2, 2]
    fwd:
      %x.full = all_gather %x axis=dp_shard dim=0 : f32[4, 2]
      %y = aten.relu %w : f32[2, 2]
      return %x.full, %y
  )");
}

TEST_CASE("a gather is written into a buffer that is given away, of its own shape") {
  const auto text = [](const std::string& shape, const std::string& attrs) {
    return "graph mesh [dp_shard=2] view local\n  %b = state name=b : f32[" + shape +
           "]\n  %w = param name=w rows=4 : f32[2/dp_shard]\nfwd:\n  %g = all_gather %w, %b axis=dp_shard dim=0" +
           attrs + " : f32[4]\n  return %g\n  carry %b = %g\n";
  };
  CHECK_NOTHROW(ir::parse_or_throw(text("4", " donates=[1]")));
  expect_diagnostic(text("4", ""), "expected donates=[1]");
  expect_diagnostic(text("5", " donates=[1]"), "the buffer");
}

// A step's losses and stored parameters over `steps` steps, on all ranks; whole copies start as what they copy.
struct Run {
  std::vector<std::vector<Array>> outputs;  // by step, of rank 0
  std::vector<Inputs> carried;              // by rank
};

Run run_steps(const ir::Graph& graph, std::vector<Inputs> inputs, int steps) {
  Run run;
  for (const auto& op : graph.ops()) {
    if (!op->is("state") || !op->has_attr("whole_of")) continue;
    Array whole;
    for (Inputs& rank : inputs) {
      const Array& shard = rank.at(op->attr<std::string>("whole_of"));
      if (&rank == &inputs[0]) whole = Array::zeros(op->result()->type().dtype, {});
      if (&rank == &inputs[0]) whole.data.clear();
      whole.data.insert(whole.data.end(), shard.data.begin(), shard.data.end());
    }
    whole.shape = op->result()->type().shape();
    for (Inputs& rank : inputs) rank[op->attr<std::string>("name")] = whole;
  }
  for (int k = 0; k < steps; ++k) {
    const auto result = ir::interp::run(graph, inputs);
    run.outputs.push_back(result.ranks[0].outputs);
    for (size_t r = 0; r < inputs.size(); ++r)
      for (const auto& [name, value] : result.ranks[r].carried) inputs[r][name] = value;
  }
  run.carried = inputs;
  return run;
}

TEST_CASE("keep_whole: three steps give the same bits as gathering where parameters are read, by rows and in units") {
  const std::vector<Param> params = {{"layers.0.a", 4, 3}, {"layers.0.b", 5, 2}, {"layers.1.a", 1, 7}};
  for (const int64_t world : {2, 3})
    for (const std::string before : {"", "wrap, bucket"}) {
      CAPTURE(world);
      CAPTURE(before);
      ir::Graph gathered = ir::parse_or_throw(sharded_step_text(world, params));
      if (!before.empty()) run_passes(gathered, parse_passes(before));
      ir::Graph whole = gathered.clone();
      const auto report =
          run_passes(whole, parse_passes("keep_whole, split_collectives, prefetch_gathers, sink_waits"));
      CHECK(report[0].changed);
      std::vector<Inputs> inputs = ir::interp::seeded_inputs(gathered, 7);
      for (Inputs& rank : inputs)
        for (auto& [name, value] : rank)
          if (name.ends_with("exp_avg_sq") || name == "step")  // squares, and a count
            for (double& x : value.data) x = std::abs(x);
      for (Inputs& rank : inputs) rank.at("step") = inputs[0].at("step");
      const Run expected = run_steps(gathered, inputs, 3), got = run_steps(whole, inputs, 3);
      CHECK(got.outputs == expected.outputs);
      CHECK(expected.outputs[0] != expected.outputs[1]);
      for (size_t r = 0; r < inputs.size(); ++r)
        for (const auto& [name, value] : expected.carried[r]) {
          CAPTURE(name);
          CHECK(got.carried[r].at(name) == value);
        }
      // One gather a step for each param, after its update, and none beside it.
      int64_t gathers = 0, stored = 0;
      for (const auto& op : whole.ops()) {
        if (op->is("param")) ++stored;
        if (op->opcode.starts_with("all_gather") && ++gathers > 0) CHECK(op->section == ir::Section::Opt);
      }
      CHECK(gathers == stored);
      // What is gathered replaces what was read, in its own bytes.
      for (const auto& b : plan::find_buffers(whole)) CHECK_FALSE(b.value->producer()->is("all_gather"));
    }
}

}  // namespace
}  // namespace sfsdp::passes

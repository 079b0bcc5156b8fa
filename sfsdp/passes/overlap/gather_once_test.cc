// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/gather_once.h"

#include <doctest/doctest.h>

#include <cmath>

#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/interp/interpreter.h"
#include "sfsdp/testing/sharded_step.h"

namespace sfsdp::passes::gather_once_test {
namespace {

using ir::interp::Array, ir::interp::Inputs;
using testing::expect_pass, testing::expect_unchanged, testing::Param, testing::sharded_step_text;

TEST_CASE("gather_once: starts go above all sections with their casts and packs, waits stay") {
  expect_pass("gather_once", R"(
    graph mesh [dp_shard=2] view local
      %v = param name=v : f32[1/dp_shard, 2]
      %w = param name=w : f32[2/dp_shard, 2]
      %x = input name=x : f32[4, 2] own(dp_shard)
    fwd:
      %w.cast = cast %w : bf16[2/dp_shard, 2] at w
      %w.start = all_gather.start %w.cast axis=dp_shard dim=0 : async bf16[4, 2] at w
      %w.full = wait %w.start : bf16[4, 2] at w
      %y = aten.mul.Tensor %x, %w.full : f32[4, 2] at w
      %v.pack = pack [%v] offsets=[0] : f32[2/dp_shard] at v
      %v.start = all_gather.start %v.pack axis=dp_shard dim=0 : async f32[4] at v
      %v.full = wait %v.start : f32[4] at v
      return %y, %v.full
  )",
              R"(
    graph mesh [dp_shard=2] view local
      %v = param name=v : f32[1/dp_shard, 2]
      %w = param name=w : f32[2/dp_shard, 2]
      %x = input name=x : f32[4, 2] own(dp_shard)
      %w.cast = cast %w : bf16[2/dp_shard, 2] at w
      %w.start = all_gather.start %w.cast axis=dp_shard dim=0 : async bf16[4, 2] at w
      %v.pack = pack [%v] offsets=[0] : f32[2/dp_shard] at v
      %v.start = all_gather.start %v.pack axis=dp_shard dim=0 : async f32[4] at v
    fwd:
      %w.full = wait %w.start : bf16[4, 2] at w
      %y = aten.mul.Tensor %x, %w.full : f32[4, 2] at w
      %v.full = wait %v.start : f32[4] at v
      return %y, %v.full
  )");
}

TEST_CASE("gather_once: what backward gathers again, activations and shards that others read stay") {
  expect_unchanged("gather_once", R"(
    graph mesh [dp_shard=2] view local
      %u = param name=u : f32[2/dp_shard, 2]
      %w = param name=w : f32[2/dp_shard, 2]
      %x = input name=x : f32[2, 2]
    fwd:
      %w.start = all_gather.start %w axis=dp_shard dim=0 : async f32[4, 2]
      %w.full = wait %w.start : f32[4, 2]
      %x.start = all_gather.start %x axis=dp_shard dim=0 : async f32[4, 2]
      %x.full = wait %x.start : f32[4, 2]
      %u.cast = cast %u : bf16[2/dp_shard, 2]
      %u.start = all_gather.start %u.cast axis=dp_shard dim=0 : async bf16[4, 2]
      %u.full = wait %u.start : bf16[4, 2]
      %y = aten.neg %u.cast : bf16[2/dp_shard, 2]
    bwd:
      %w.start.1 = all_gather.start %w axis=dp_shard dim=0 : async f32[4, 2]
      %w.full.1 = wait %w.start.1 : f32[4, 2]
      return %w.full, %x.full, %w.full.1, %u.full
  )");
}

// A step's losses and stored parameters over `steps` steps, on all ranks.
struct Run {
  std::vector<std::vector<Array>> outputs;  // by step, of rank 0
  std::vector<Inputs> carried;              // by rank
};

Run run_steps(const ir::Graph& graph, std::vector<Inputs> inputs, int steps) {
  Run run;
  for (int k = 0; k < steps; ++k) {
    const auto result = ir::interp::run(graph, inputs);
    run.outputs.push_back(result.ranks[0].outputs);
    for (size_t r = 0; r < inputs.size(); ++r)
      for (const auto& [name, value] : result.ranks[r].carried) inputs[r][name] = value;
  }
  run.carried = inputs;
  return run;
}

// The second gathers, which backward has in the text, are taken from forward: what reshard_after_forward = false leaves.
ir::Graph gathered_in_forward(int64_t world, const std::vector<Param>& params, const std::string& before) {
  ir::Graph graph = ir::parse_or_throw(sharded_step_text(world, params));
  for (const auto& op : graph.ops())
    if (op->is("param")) op->attrs["keep"] = true;
  run_passes(graph, parse_passes(before.empty() ? "reshard" : "wrap, reshard, bucket"));
  return graph;
}

TEST_CASE("gather_once: three steps give the same bits as gathers in every micro-batch, by rows and in units") {
  const std::vector<Param> params = {{"layers.0.a", 4, 3}, {"layers.0.b", 5, 2}, {"layers.1.a", 1, 7}};
  for (const int64_t world : {2, 3})
    for (const int64_t micro_batches : {1, 3})
      for (const std::string before : {"", "wrap, bucket"}) {
        CAPTURE(world);
        CAPTURE(micro_batches);
        CAPTURE(before);
        ir::Graph gathered = gathered_in_forward(world, params, before);
        gathered.micro_batches = micro_batches;
        ir::Graph once = gathered.clone();
        const auto report =
            run_passes(once, parse_passes("split_collectives, gather_once, prefetch_gathers, sink_waits"));
        CHECK(report[1].changed);
        std::vector<Inputs> inputs = ir::interp::seeded_inputs(gathered, 7);
        for (Inputs& rank : inputs)
          for (auto& [name, value] : rank)
            if (name.ends_with("exp_avg_sq") || name == "step")  // squares, and a count
              for (double& x : value.data) x = std::abs(x);
        for (Inputs& rank : inputs) rank.at("step") = inputs[0].at("step");
        const Run expected = run_steps(gathered, inputs, 3), got = run_steps(once, inputs, 3);
        CHECK(got.outputs == expected.outputs);
        CHECK(expected.outputs[0] != expected.outputs[1]);
        for (size_t r = 0; r < inputs.size(); ++r)
          for (const auto& [name, value] : expected.carried[r]) {
            CAPTURE(name);
            CHECK(got.carried[r].at(name) == value);
          }
        // One gather a step for each param, whatever the micro-batches; with several its memory lives to the end of backward.
        int64_t gathers = 0, stored = 0, last = 0;
        for (size_t i = 0; i < once.ops().size(); ++i) {
          const ir::Op& op = *once.ops()[i];
          if (op.is("param")) ++stored;
          if (ir::is_repeated(op)) last = static_cast<int64_t>(i);
          if (op.opcode.starts_with("all_gather") && ++gathers > 0) CHECK(op.section == ir::Section::Init);
        }
        CHECK(gathers == stored);
        if (micro_batches > 1)
          for (const auto& b : plan::find_buffers(once).buffers)
            if (b.value->producer()->is("all_gather.start")) CHECK(b.last >= last);
      }
}

}  // namespace
}  // namespace sfsdp::passes::gather_once_test

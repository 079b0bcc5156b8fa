// SPDX-License-Identifier: BSD-3-Clause
// Plans of a training step and an evaluation, one after the other on one memory.
#include "sfsdp/plan/storage_layout.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/testing/machine/plan_machine.h"
#include "sfsdp/testing/sharded_step.h"

namespace sfsdp::plan::machine::storage_layout_test {
namespace {

struct Texts {
  const char *passes, *params;  // of the training step; as the evaluation has them
};
const Texts kFlat = {"wrap, bucket, keep_in_place",
                     "  %p = param members=[l.0.a, l.0.b] name=l.0.flat numels=[35, 64] offsets=[0, 64] size=128"
                     " : f32[64/dp_shard]\n"
                     "fwd:\n"
                     "  %g = all_gather %p axis=dp_shard dim=0 : f32[128]\n"};
const Texts kEach = {"keep_in_place",
                     "  %p = param name=l.0.a rows=5 : f32[3/dp_shard~, 7]\n"
                     "fwd:\n"
                     "  %g = all_gather %p axis=dp_shard dim=0 : f32[6, 7]\n"};

ir::Graph training(const Texts& texts) {
  ir::Graph graph = ir::parse_or_throw(
      testing::sharded_step_text(2, {{"l.0.a", 5, 7}, {"l.0.b", 64, 1}, {"l.1.c", 3, 3}}, {.batch = true}));
  passes::run_passes(graph, passes::parse_passes(texts.passes));
  return graph;
}
ir::Graph evaluation(const Texts& texts) {
  return ir::parse_or_throw(concat("graph mesh [dp_shard=2] view local\n", texts.params,
                                   "  %twice = mul_scalar %g value=2.0 : ", &texts == &kFlat ? "f32[128]" : "f32[6, 7]",
                                   "\n  %sum = aten.sum %twice : f32[]\n  return %sum\n"));
}

std::vector<Inputs> given(const ir::Graph& graph, uint64_t seed) {
  std::vector<Inputs> inputs = ir::interp::seeded_inputs(graph, seed);
  for (Inputs& rank : inputs)
    for (auto& [name, value] : rank)
      if (name.ends_with("exp_avg_sq") || name == "step")  // squares, and a count
        for (double& x : value.data) x = std::abs(x);
  return inputs;
}

std::string differing_state(const StorageLayout& layout, const std::vector<Memory>& a, const std::vector<Memory>& b) {
  std::string names;
  for (const StateEntry& entry : layout.entries)
    for (size_t rank = 0; rank < a.size(); ++rank) {
      const auto region = static_cast<size_t>(entry.region);
      const auto bytes = largest_part(layout, entry) * ir::size_in_bytes(entry.dtype);
      const auto begin = [&](const std::vector<Memory>& memory) { return memory[rank][region].begin() + entry.offset; };
      if (!std::equal(begin(a), begin(a) + bytes, begin(b))) names += concat(entry.name, " of rank ", rank, "; ");
    }
  return names;
}

}  // namespace

TEST_CASE(
    "plan machine: an evaluation on the memory of a training step reads its weights and leaves every byte of state") {
  for (const Texts* texts : {&kFlat, &kEach}) {
    CAPTURE(texts->passes);
    StorageLayout layout;
    const StepPlan train = make_plan(training(*texts), {}, layout), eval = make_plan(evaluation(*texts), {}, layout);
    const StepPlan alone = make_plan(evaluation(*texts));
    const std::vector<std::vector<Inputs>> batches = {given(train.graph, 7), given(train.graph, 8),
                                                      given(train.graph, 9)};
    const std::vector<std::vector<Inputs>> nothing = {std::vector<Inputs>(2)};
    for (uint64_t schedule = 0; schedule < 6; ++schedule) {
      const Outcome two = run(train, {batches[0], batches[1]}, {.schedule = schedule});
      const Outcome evaluated = run(eval, nothing, {.schedule = schedule, .memory = two.memory});
      CHECK(join(two.faults, "\n") + join(evaluated.faults, "\n") == "");
      CHECK(differing_state(layout, two.memory, evaluated.memory) == "");
      std::vector<Inputs> weights;
      for (const RankResult& rank : two.steps.back()) weights.emplace_back(rank.carried);
      const ir::interp::RunResult expected = ir::interp::run(eval.graph, weights);
      for (size_t rank = 0; rank < 2; ++rank) CHECK(evaluated.steps[0][rank].outputs == expected.ranks[rank].outputs);

      // The third step is as if nothing had been between.
      const Outcome third =
          run(train, {batches[2]}, {.schedule = schedule, .lr = 0.125 / 4, .memory = evaluated.memory});
      const Outcome three = run(train, batches, {.schedule = schedule});
      CHECK(differing_state(layout, third.memory, three.memory) == "");

      // One that counts its own addresses writes over what it does not read.
      const Outcome torn = run(alone, nothing, {.schedule = schedule, .memory = two.memory});
      CHECK(differing_state(layout, two.memory, torn.memory) != "");
    }
  }
}

}  // namespace sfsdp::plan::machine::storage_layout_test

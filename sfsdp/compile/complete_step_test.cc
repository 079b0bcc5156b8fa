// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/compile/complete_step.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/sentences.h"
#include "sfsdp/tune/scaled_step.h"

namespace sfsdp::step::complete_step_test {
namespace {

constexpr int kLayers = 4;

// A chain of products as capture leaves it: whole parameters, an unread gradient op for each.
ir::Graph captured() {
  std::string params, forward, backward;
  const std::string type = " : f32[512, 512]";
  for (int i = 0; i < kLayers; ++i) {
    const std::string at = concat(" at layers.", i), x = i == 0 ? "%x" : concat("%y", i - 1);
    params += concat("  %w", i, " = param name=layers.", i, ".w", type, at, "\n");
    forward += concat("  %y", i, " = aten.mm ", x, ", %w", i, type, at, "\n");
    std::string back = concat("  %t", i, " = aten.t ", x, " : f32[512, 512]{1, 512}", at, "\n");
    back += concat("  %gw", i, " = aten.mm %t", i, ", %g", i, type, at, "\n");
    back += concat("  %w", i, ".grad = gradient %gw", i, " param=layers.", i, ".w", type, at, "\n");
    if (i > 0) {
      back += concat("  %wt", i, " = aten.t %w", i, " : f32[512, 512]{1, 512}", at, "\n");
      back += concat("  %g", i - 1, " = aten.mm %g", i, ", %wt", i, type, at, "\n");
    }
    backward.insert(0, back);
  }
  const std::string last = std::to_string(kLayers - 1);
  return ir::parse_or_throw(concat("graph mesh [] view global\n  %x = input name=x", type, "\n", params, "fwd:\n",
                                   forward, "loss:\n  %loss = aten.mean %y", last, " : f32[]\nbwd:\n",
                                   "  %seed = full value=1.0 : f32[]\n  %g", last, " = aten.mul.Tensor %y", last,
                                   ", %seed", type, "\n", backward, "  return %loss\n"));
}

struct Choice {
  int64_t replicate = 1, shard = 1, stage = 3, micro_batches = 1;
};

plan::StepPlan compiled(const Choice& c) {
  std::vector<MeshAxis> axes;
  if (c.replicate > 1) axes.push_back({"dp_replicate", c.replicate});
  axes.push_back({"dp_shard", c.shard});
  const StepOptions options{.optimizer = AdamW{}, .max_norm = 1, .micro_batches = c.micro_batches};
  return complete_step(captured(), data_parallel(DeviceMesh(axes), {.zero_stage = c.stage}), options, false);
}

int64_t count(const ir::Graph& graph, std::string_view kind) {
  return std::ranges::count_if(
      graph.ops(), [&](const auto& op) { return ir::is_collective(*op) && ir::collective_kind(*op) == kind; });
}

TEST_CASE("complete_step: of one capture the step of any mesh, each rank's share of the mean in the seed") {
  const ir::Graph fsdp = std::move(compiled({.shard = 8}).graph);
  CHECK(count(fsdp, "all_gather") == 2 * kLayers - 2);  // the last unit stays gathered, backward reads no first weight
  CHECK(count(fsdp, "reduce_scatter") == kLayers);
  CHECK(fsdp.find_value("seed")->producer()->attr<double>("value") == 1.0 / 8);
  const ir::Graph hybrid = std::move(compiled({.replicate = 2, .shard = 4, .micro_batches = 3}).graph);
  CHECK(count(hybrid, "all_reduce") == kLayers + 2);  // of gradients, loss and norm
  CHECK(hybrid.micro_batches == 3);
  CHECK(hybrid.find_value("seed")->producer()->attr<double>("value") == 1.0 / 24);
  CHECK(count(compiled({}).graph, "all_gather") == 0);
}

// Attention, a table and a head of so many words, on 2 samples of 8 tokens.
ir::Graph captured_sentences(int64_t words) {
  std::string text;
  for (const std::string& line : split(testing::dedent(testing::kSentences), '\n')) {
    if (line.find("carry") != line.npos) continue;
    text += line + "\n";
  }
  for (const char* before : {"f32[", "8, ", "16, ", "num_weights="}) {
    const std::string after = std::string(before) == "f32[" ? ", 4]" : "";
    const std::string from = concat(before, 5, after), to = concat(before, words, after);
    for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
  }
  return ir::parse_or_throw(text);
}

int64_t rows_of_logits(const ir::Graph& graph) {
  int64_t rows = 0;
  for (const auto& op : graph.ops())
    if (op->is("cross_entropy", "cross_entropy_parts", "cross_entropy_backward"))
      rows = std::max(rows, op->operands[op->is("cross_entropy_backward") ? 1 : 0]->type().dims[0].size);
  return rows;
}

TEST_CASE(
    "complete_step: chunks of a loss beside model axes leave no logits of all rows, and send no more than the loss in "
    "parts") {
  struct Setting {
    std::vector<MeshAxis> axes;
    bool sequence_parallel = false, loss_parallel = true;
    int64_t stage = 3, micro_batches = 1;
    passes::RematMode remat = passes::RematMode::None;
  };
  const MeshAxis dp{"dp_shard", 2}, cp{"cp", 2}, tp{"tp", 2};
  for (const Setting& setting : std::vector<Setting>{{{dp, tp}},
                                                     {{dp, tp}, true, true, 3, 3},
                                                     {{tp}, true, false},
                                                     {{dp, cp}, false, true, 1, 2},
                                                     {{dp, cp}, false, true, 2},
                                                     {{cp, tp}, true, true, 3, 1, passes::RematMode::Full},
                                                     {{dp, cp, tp}, false, false, 3, 1, passes::RematMode::Full}}) {
    CAPTURE(to_string(DeviceMesh(setting.axes)));
    const auto plan_of = [&](int64_t chunks) {
      const bool has_tp = setting.axes.back().name == "tp";
      const TensorParallelOptions options = {.sequence_parallel = setting.sequence_parallel,
                                             .loss_parallel = setting.loss_parallel};
      StepOptions step{.optimizer = SGD{}, .max_norm = 1, .micro_batches = setting.micro_batches};
      step.pipeline.loss_chunks = chunks;
      step.pipeline.remat.mode = setting.remat;
      return complete_step(
          captured_sentences(4096),
          data_parallel(DeviceMesh(setting.axes), {.zero_stage = setting.stage},
                        has_tp ? tensor_parallel({{"tok|head", Shard(0)}}, options) : TensorParallel()),
          step, false);
    };
    const plan::StepPlan whole = plan_of(1);
    const int64_t rows = rows_of_logits(whole.graph);
    for (const int64_t chunks : {2, 3}) {
      CAPTURE(chunks);
      const plan::StepPlan plan = plan_of(chunks);
      CHECK(rows_of_logits(plan.graph) == (rows + chunks - 1) / chunks);
      // Three numbers a row, or logits, for each chunk; the head's weight is gathered in backward alone.
      const bool in_parts = setting.axes.back().name == "tp";
      const bool gathers_again = setting.stage == 3 && setting.axes.size() > 1;
      CHECK(count(plan.graph, "all_gather") - count(whole.graph, "all_gather") ==
            (in_parts ? chunks - 1 : 0) - (gathers_again ? 1 : 0));
      CHECK(count(plan.graph, "all_reduce") == count(whole.graph, "all_reduce"));
      CHECK(count(plan.graph, "reduce_scatter") == count(whole.graph, "reduce_scatter"));
    }
  }
}

TEST_CASE("complete_step: chunks of a loss that cannot be are refused by name, with the cure") {
  StepOptions options{.optimizer = SGD{}};
  options.pipeline.loss_chunks = 9;
  CHECK_THROWS_WITH_AS(
      complete_step(captured_sentences(5), data_parallel(DeviceMesh({{"cp", 2}})), options, false),
      doctest::Contains("PipelineOptions::loss_chunks = 9: no loss of this model can be cut into chunks: "
                        "cross_entropy is of 8 rows on a rank\n  expected a linear layer without bias"),
      UserError);
}

// What sim::simulate says of the mesh itself.
TEST_CASE("scaled_step: compiled on two meshes, a step is timed on others as the simulator times them") {
  cost::Machine machine = cost::load_machine("dgx_h100");
  for (const int64_t stage : {1, 2, 3})
    for (const int64_t micro_batches : {1, 2, 9})
      for (const int64_t replicate : {1, 4}) {
        const auto choice = [&](int64_t shard) { return Choice{replicate, shard, stage, micro_batches}; };
        tune::ScaledStep scaled(compiled({replicate, 2, stage, std::min<int64_t>(micro_batches, 2)}),
                                compiled({replicate, 64, stage, std::min<int64_t>(micro_batches, 2)}), machine);
        for (const int64_t shard : {2, 8, 16, 32}) {
          CAPTURE(concat("stage ", stage, ", micro-batches ", micro_batches, ", mesh ", replicate, " × ", shard));
          const plan::StepPlan plan = compiled(choice(shard));
          const sim::Simulation expected = sim::simulate(plan.graph, machine);
          const tune::ScaledEstimate got = scaled.at(plan.graph.mesh, micro_batches);
          CHECK(got.seconds == doctest::Approx(expected.step_seconds).epsilon(1e-9));
          CHECK(got.compute_seconds == doctest::Approx(expected.compute_seconds).epsilon(1e-9));
          for (const auto& [kind, seconds] : expected.exposed_seconds)
            CHECK(got.exposed_seconds.at(kind) == doctest::Approx(seconds).epsilon(1e-6));
          CHECK(static_cast<double>(got.peak_bytes) ==
                doctest::Approx(static_cast<double>(plan.memory.peak())).epsilon(0.001));
        }
      }
}

}  // namespace
}  // namespace sfsdp::step::complete_step_test

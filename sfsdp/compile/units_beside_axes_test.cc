// SPDX-License-Identifier: BSD-3-Clause
// Units by cost (parallelism.fsdp_wrap = auto, search) beside tp, cp and ep: each step is proved, and timed against units by name.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/compile/complete_step.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/sentences.h"

namespace sfsdp::step::units_beside_axes_test {
namespace {

// Layers of gate and up in one matrix, then 4 experts of which each token has one, on 8 tokens.
class Mixtures {
 public:
  explicit Mixtures(int64_t layers) {
    for (int64_t i = 0; i < layers; ++i) layer(std::to_string(i), std::to_string(i + 1));
    text_ =
        concat("graph mesh [] view global\n  %x0 = input name=x : f32[8, 64]\n  %order = input name=order : i64[8]\n",
               params_, "fwd:\n  %ends = full value=8 : i32[4]\n", forward_, "loss:\n  %loss = aten.sum %x", layers,
               " : f32[]\nbwd:\n  %one = full value=1.0 : f32[]\n  %d", layers, " = aten.mul.Tensor %x", layers,
               ", %one : f32[8, 64]\n", backward_, "  return %loss\n");
  }
  ir::Graph graph() const { return ir::parse_or_throw(text_); }

 private:
  void param(const std::string& value, const std::string& path, const std::string& type) {
    params_ += concat("  %", value, " = param name=", path, " : ", type, " at ", path, "\n");
  }

  void layer(const std::string& i, const std::string& next) {
    const std::string at = concat(" at layers.", i, "."), mlp = concat("layers.", i, ".mlp.");
    const std::string moe = concat("layers.", i, ".moe.experts.");
    param("a" + i, mlp + "w13.weight", "f32[512, 64]");
    param("b" + i, mlp + "w2.weight", "f32[64, 256]");
    param("e" + i, moe + "w1", "f32[4, 128, 64]");
    param("f" + i, moe + "w2", "f32[4, 64, 128]");
    const auto named = [&](std::string lines) {
      for (const auto& [from, to] : {std::pair<std::string, std::string>{"#", i}, {"$", next}, {" @", at}})
        for (size_t p = lines.find(from); p != lines.npos; p = lines.find(from, p + to.size()))
          lines.replace(p, from.size(), to);
      return lines;
    };
    forward_ += named(R"(  %h# = linear %x#, %a# : f32[8, 512] @mlp.w13
  %g#, %u# = aten.split.Tensor %h# dim=-1 split_size=256 : f32[8, 256]{512, 1}, f32[8, 256]{512, 1} @mlp
  %m# = aten.mul.Tensor %g#, %u# : f32[8, 256] @mlp
  %v# = linear %m#, %b# : f32[8, 64] @mlp.w2
  %y# = aten.relu %v# : f32[8, 64] @mlp
  %r# = aten.index_select %y#, %order dim=0 : f32[8, 64] @moe
  %et# = aten.transpose.int %e# dim0=1 dim1=2 : f32[4, 64, 128]{8192, 1, 64} @moe.experts
  %p# = aten._grouped_mm %r#, %et#, %ends, none : f32[8, 128] @moe.experts
  %s# = aten.silu %p# : f32[8, 128] @moe.experts
  %ft# = aten.transpose.int %f# dim0=1 dim1=2 : f32[4, 128, 64]{8192, 1, 128} @moe.experts
  %z# = aten._grouped_mm %s#, %ft#, %ends, none : f32[8, 64] @moe.experts
  %o# = aten.index_select %z#, %order dim=0 : f32[8, 64] @moe
  %x$ = aten.add.Tensor %y#, %o# : f32[8, 64] @moe
)");
    backward_.insert(0, named(R"(  %n1# = aten.new_zeros %z# size=[8, 64] : f32[8, 64] @moe
  %dz# = aten.index_add %n1#, %order, %d$ dim=0 : f32[8, 64] @moe
  %zt# = aten.t %dz# : f32[64, 8]{1, 64} @moe.experts
  %df# = aten._grouped_mm %zt#, %s#, %ends, none : f32[4, 64, 128] @moe.experts
  %f#.grad = gradient %df# param=layers.#.moe.experts.w2 : f32[4, 64, 128]
  %ds# = aten._grouped_mm %dz#, %f#, %ends, none : f32[8, 128] @moe.experts
  %dp# = aten.mul.Tensor %ds#, %s# : f32[8, 128] @moe.experts
  %pt# = aten.t %dp# : f32[128, 8]{1, 128} @moe.experts
  %de# = aten._grouped_mm %pt#, %r#, %ends, none : f32[4, 128, 64] @moe.experts
  %e#.grad = gradient %de# param=layers.#.moe.experts.w1 : f32[4, 128, 64]
  %dr# = aten._grouped_mm %dp#, %e#, %ends, none : f32[8, 64] @moe.experts
  %n2# = aten.new_zeros %y# size=[8, 64] : f32[8, 64] @moe
  %dy1# = aten.index_add %n2#, %order, %dr# dim=0 : f32[8, 64] @moe
  %dy# = aten.add.Tensor %d$, %dy1# : f32[8, 64] @moe
  %dv# = aten.threshold_backward %dy#, %y# threshold=0 : f32[8, 64] @mlp
  %dm# = linear_dx %dv#, %b# bwd_of=%v# : f32[8, 256] @mlp.w2
  %db# = linear_dw %dv#, %m# bwd_of=%v# : f32[64, 256] @mlp.w2
  %b#.grad = gradient %db# param=layers.#.mlp.w2.weight : f32[64, 256]
  %dg# = aten.mul.Tensor %dm#, %u# : f32[8, 256] @mlp
  %du# = aten.mul.Tensor %dm#, %g# : f32[8, 256] @mlp
  %dh# = aten.cat [%dg#, %du#] dim=-1 : f32[8, 512] @mlp
  %da# = linear_dw %dh#, %x# bwd_of=%h# : f32[512, 64] @mlp.w13
  %a#.grad = gradient %da# param=layers.#.mlp.w13.weight : f32[512, 64]
  %d# = linear_dx %dh#, %a# bwd_of=%h# : f32[8, 64] @mlp.w13
)"));
  }

  std::string params_, forward_, backward_, text_;
};

// Sentences over so many words (kSentences has 5).
ir::Graph sentences() {
  std::string text;
  for (const std::string& line : split(testing::dedent(testing::kSentences), '\n'))
    if (line.find("carry") == line.npos) text += line + "\n";
  return ir::parse_or_throw(text);
}

struct Setting {
  std::vector<MeshAxis> axes;
  std::vector<TensorParallelRule> rules = {};
  bool sequence_parallel = false;
};

plan::StepPlan plan_of(ir::Graph graph, const Setting& setting, const tune::TuneOptions& tune) {
  StepOptions options{.optimizer = AdamW{}, .max_norm = 1};
  options.tune = tune;
  TensorParallel tensor;
  if (!setting.rules.empty()) tensor = tensor_parallel(setting.rules, {.sequence_parallel = setting.sequence_parallel});
  return complete_step(std::move(graph), data_parallel(DeviceMesh(setting.axes), {}, tensor), options, false);
}

// complete_step proves each plan: placements on each axis, gathers, deadlocks, memory.
void expect_units(const ir::Graph& graph, const Setting& setting) {
  CAPTURE(to_string(DeviceMesh(setting.axes)));
  const cost::Machine machine = cost::load_machine("dgx_h100");
  const auto seconds = [&](const plan::StepPlan& plan) { return sim::simulate(plan.graph, machine).step_seconds; };
  const plan::StepPlan named = plan_of(graph.clone(), setting, {});
  for (const tune::Wrap wrap : {tune::Wrap::Auto, tune::Wrap::Search})
    for (const bool reshard : {false, true}) {
      CAPTURE(static_cast<int>(wrap));
      CAPTURE(reshard);
      const plan::StepPlan plan =
          plan_of(graph.clone(), setting, {.wrap = wrap, .choose_reshard = reshard, .machine = "dgx_h100"});
      if (wrap == tune::Wrap::Search) CHECK(seconds(plan) <= seconds(named) * (1 + 1e-9));
    }
}

const MeshAxis kDp{"dp_shard", 2}, kCp{"cp", 2}, kEp{"ep", 2}, kTp{"tp", 2};

TEST_CASE("units by cost beside tp and ep: mixtures cut by experts, in their width, or both, and blocks side by side") {
  const ir::Graph graph = Mixtures(3).graph();
  const std::vector<TensorParallelRule> blocks = {{"*.w13", Shard(0, {.blocks = 2})}, {"*.mlp.w2", Shard(1)}};
  std::vector<TensorParallelRule> width = {{"*.experts.w1", Shard(1)}, {"*.experts.w2", Shard(2)}};
  width.insert(width.end(), blocks.begin(), blocks.end());
  expect_units(graph, {{kDp, kEp}});
  expect_units(graph, {{kDp, kTp}, blocks});
  expect_units(graph, {{kDp, kTp}, width});
  expect_units(graph, {{kDp, kEp, kTp}, width});
  expect_units(graph, {{{"dp_shard", 1}, kEp, kTp}, width});
}

TEST_CASE("units by cost beside tp: weights that an op wants whole are gathered over tp, forward and backward") {
  const ir::Graph graph = Mixtures(3).graph();
  expect_units(graph, {{kDp, kTp}, {{"*.experts.w1|w2", Shard(0)}}});
  expect_units(graph, {{kDp, kTp}, {{"*.experts.w1", Shard(0)}, {"*.w13", Shard(0)}, {"*.mlp.w2", Shard(0)}}});
}

TEST_CASE("units by cost beside tp and cp: attention, and a vocabulary that tp pads") {
  const ir::Graph graph = sentences();
  const std::vector<TensorParallelRule> rows = {{"tok|head", Shard(0)}, {"wk", Shard(0)}};
  expect_units(graph, {{kDp, kCp}});
  expect_units(graph, {{kDp, kTp}, rows, true});
  expect_units(graph, {{kDp, {"tp", 4}}, {{"tok|head", Shard(0)}}});
  expect_units(graph, {{kDp, kCp, kTp}, rows, true});
}

}  // namespace
}  // namespace sfsdp::step::units_beside_axes_test

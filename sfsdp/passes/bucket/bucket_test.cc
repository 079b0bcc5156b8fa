// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/bucket/bucket.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/passes/bucket/wrap.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/interp/interpreter.h"
#include "sfsdp/testing/sharded_step.h"

namespace sfsdp::passes::bucket_test {
namespace {

using ir::interp::Array, ir::interp::Inputs;
using testing::Param, testing::sharded_step_text;

// The whole tensor, out of the rows that the ranks hold.
std::vector<double> whole_of(const Param& p, const std::vector<Array>& shards) {
  std::vector<double> whole;
  for (const Array& shard : shards) whole.insert(whole.end(), shard.data.begin(), shard.data.end());
  whole.resize(static_cast<size_t>(p.rows * p.columns));
  return whole;
}

// Both graphs compute the same bits, their storage translated into each other.
void expect_same_meaning(int64_t world, const std::vector<Param>& params, bool bf16, const std::string& passes) {
  CAPTURE(world);
  CAPTURE(bf16);
  const ir::Graph before = ir::parse_or_throw(sharded_step_text(world, params, {.bf16 = bf16}));
  ir::Graph after = before.clone();
  const auto reports = run_passes(after, parse_passes(passes));
  CHECK(reports.back().changed);
  const plan::BucketLayouts layout = plan::bucket_layouts_of(after);

  std::vector<Inputs> inputs = ir::interp::seeded_inputs(before, 7);
  for (Inputs& rank : inputs)
    for (auto& [name, value] : rank)
      if (name.ends_with("exp_avg_sq") || name == "step")  // squares, and a count
        for (double& x : value.data) x = std::abs(x);
  std::vector<Inputs> flat_inputs(static_cast<size_t>(world));
  const auto shards_of = [&](const std::string& name) {
    std::vector<Array> shards;
    for (const Inputs& rank : inputs) shards.push_back(rank.at(name));
    return shards;
  };
  for (size_t r = 0; r < inputs.size(); ++r) flat_inputs[r]["step"] = inputs[r].at("step");
  for (const plan::BucketLayout& b : layout)
    for (const std::string suffix : {"", ".exp_avg", ".exp_avg_sq"}) {
      std::vector<double> flat(static_cast<size_t>(b.whole));
      for (size_t i = 0; i < b.members.size(); ++i) {
        const Param& p = *std::ranges::find(params, b.members[i], &Param::name);
        std::ranges::copy(whole_of(p, shards_of(p.name + suffix)), flat.begin() + b.offsets[i]);
      }
      for (int64_t r = 0; r < world; ++r) {
        Array shard = Array::zeros(ir::DType::f32, {b.shard});
        std::copy_n(flat.begin() + r * b.shard, b.shard, shard.data.begin());
        flat_inputs[static_cast<size_t>(r)][b.name + suffix] = shard;
      }
    }

  const auto expected = ir::interp::run(before, inputs), got = ir::interp::run(after, flat_inputs);
  for (size_t r = 0; r < inputs.size(); ++r) CHECK(got.ranks[r].outputs == expected.ranks[r].outputs);
  for (const plan::BucketLayout& b : layout)
    for (const std::string suffix : {"", ".exp_avg", ".exp_avg_sq"}) {
      std::vector<double> flat;
      for (const auto& rank : got.ranks) {
        const Array& shard = rank.carried.at(b.name + suffix);
        flat.insert(flat.end(), shard.data.begin(), shard.data.end());
      }
      for (size_t i = 0; i < b.members.size(); ++i) {
        CAPTURE(b.members[i] + suffix);
        const Param& p = *std::ranges::find(params, b.members[i], &Param::name);
        std::vector<Array> shards;
        for (const auto& rank : expected.ranks) shards.push_back(rank.carried.at(p.name + suffix));
        const std::vector<double> whole = whole_of(p, shards);
        CHECK(std::equal(whole.begin(), whole.end(), flat.begin() + b.offsets[i]));
      }
    }
}

TEST_CASE("bucket: storage is flat, the step computes the same bits") {
  const std::vector<Param> params = {{"emb.w", 5, 3},        {"layers.0.a.w", 4, 4}, {"layers.0.b.w", 3, 2},
                                     {"layers.1.a.w", 4, 4}, {"layers.1.b.w", 1, 7}, {"norm.w", 6, 1},
                                     {"out.w", 5, 3}};
  for (const int64_t world : {2, 3, 4})
    for (const bool bf16 : {false, true}) {
      expect_same_meaning(world, params, bf16, "wrap, bucket alignment=16");
      expect_same_meaning(world, params, bf16, "wrap units=\"layers.*.*, [emb, out]\", bucket");
      expect_same_meaning(world, params, bf16, "wrap units=\"[emb, layers, norm, out]\", bucket alignment=1");
    }
}

TEST_CASE("bucket: parameters with decays and learning rates of their own share a bucket, and are updated the same") {
  const std::vector<Param> params = {
      {"layers.0.norm.w", 3, 1, 0.0},    {"layers.0.a.w", 4, 4}, {"layers.0.b.w", 3, 2, 0.125, 0.5},
      {"layers.0.c.w", 2, 5, 0.0, 0.25}, {"norm.w", 6, 1, 0.0},  {"out.w", 5, 3, 0.0}};
  for (const int64_t world : {2, 3, 4}) {
    expect_same_meaning(world, params, false, "wrap, bucket alignment=16");
    expect_same_meaning(world, params, false, "wrap units=\"[layers, norm, out]\", bucket alignment=1");
  }
}

TEST_CASE("bucket: numbers of updates become segments only where they differ, neighbours of equal ones become one") {
  const auto updates = [](const std::vector<Param>& params) {
    ir::Graph graph = ir::parse_or_throw(sharded_step_text(2, params));
    run_passes(graph, parse_passes("wrap, bucket alignment=16"));
    std::string text;
    for (const auto& op : graph.ops()) {
      if (!op->is("adamw")) continue;
      text += op->result()->name() + ":";
      for (const char* key : {"axis", "begins", "lr_factor", "weight_decay"})
        if (op->has_attr(key)) text += concat(' ', key, '=', op->attrs.at(key));
      text += "\n";
    }
    return text;
  };
  const std::vector<Param> params = {{"l.0.a", 4, 2, 0.5}, {"l.0.b", 3, 2, 0.5},      {"l.0.c", 2, 2, 0.0},
                                     {"l.0.d", 2, 2, 0.5}, {"l.1.a", 4, 2, 0.0},      {"l.1.b", 3, 2, 0.0},
                                     {"l.2.a", 4, 2, 0.5}, {"l.2.b", 3, 2, 0.5, 0.25}};
  CHECK(updates(params) ==
        "l.0.flat.new: axis=dp_shard begins=[0, 16, 20] weight_decay=[0.5, 0.0, 0.5]\n"
        "l.1.flat.new: weight_decay=0.0\n"
        "l.2.flat.new: axis=dp_shard begins=[0, 8] lr_factor=[1.0, 0.25] weight_decay=0.5\n");
}

TEST_CASE("bucket: shards are cut over the axes that the types of parameters name, however many") {
  const auto over_two_axes = [](std::string text) {
    text = std::regex_replace(text, std::regex("dp_shard=4"), "outer=2, inner=2");
    text = std::regex_replace(text, std::regex("axis=dp_shard"), "axis=[outer, inner]");
    text = std::regex_replace(text, std::regex("/dp_shard"), "/outer/inner");
    return std::regex_replace(text, std::regex("dp_shard"), "outer, inner");
  };
  const auto bucketed = [](const std::string& text) {
    ir::Graph graph = ir::parse_or_throw(text);
    run_passes(graph, parse_passes("wrap, bucket alignment=16"));
    return ir::print(graph);
  };
  const std::string text = sharded_step_text(4, {{"layers.0.w", 4, 2}, {"layers.0.v", 3, 2}, {"head.w", 2, 2}});
  CHECK(bucketed(over_two_axes(text)) == over_two_axes(bucketed(text)));
}

TEST_CASE("bucket: one gather per unit and region, one packed reduction, one update; each parameter a view") {
  ir::Graph graph =
      ir::parse_or_throw(sharded_step_text(2, {{"layers.0.w", 4, 2}, {"layers.0.v", 3, 2}, {"head.w", 2, 2}}));
  const auto reports = run_passes(graph, parse_passes("wrap, bucket alignment=16"));
  CHECK(reports[1].metrics.get("buckets") == 2);
  CHECK(reports[1].metrics.get("params_merged") == 3);
  CHECK(reports[1].metrics.get("collectives_before") == 3 * 3 + 1);
  CHECK(reports[1].metrics.get("collectives_after") == 3 * 2 + 1);
  CHECK(print(plan::bucket_layouts_of(graph)) ==
        "bucket layers.0.flat whole=16 shard=8\n"
        "  layers.0.w offset=0 numel=8\n"
        "  layers.0.v offset=8 numel=6\n"
        "bucket head.flat whole=8 shard=4\n"
        "  head.w offset=0 numel=4\n");
  std::string got;
  for (const std::string& line : split(ir::print(graph), '\n'))
    if (line.find("layers.0.flat") != std::string::npos || line.find("sum_squares") != std::string::npos)
      got += line + "\n";
  CHECK(testing::dedent(got) == testing::dedent(R"(
      %layers.0.flat.exp_avg = state name=layers.0.flat.exp_avg : f32[8/dp_shard] at layers.0
      %layers.0.flat.exp_avg_sq = state name=layers.0.flat.exp_avg_sq : f32[8/dp_shard] at layers.0
      %layers.0.flat = param members=[layers.0.w, layers.0.v] name=layers.0.flat numels=[8, 6] offsets=[0, 8] size=16 unit=layers.0 : f32[8/dp_shard] at layers.0
      %layers.0.flat.full = all_gather %layers.0.flat axis=dp_shard dim=0 : f32[16] at layers.0
      %layers.0.w.part = view %layers.0.flat.full offset=0 : f32[4, 2]
      %layers.0.v.part = view %layers.0.flat.full offset=8 : f32[3, 2]
      %layers.0.flat.full_1 = all_gather %layers.0.flat axis=dp_shard dim=0 : f32[16] at layers.0
      %layers.0.w.part_1 = view %layers.0.flat.full_1 offset=0 : f32[4, 2]
      %layers.0.v.part_1 = view %layers.0.flat.full_1 offset=8 : f32[3, 2]
      %layers.0.flat.grad.packed = pack [%layers.0.w.g, %layers.0.v.g] offsets=[0, 8] : f32[16] at layers.0
      %layers.0.flat.grad.rs = reduce_scatter %layers.0.flat.grad.packed axis=dp_shard dim=0 : f32[8] at layers.0
      %layers.0.flat.grad.acc = accumulate %layers.0.flat.grad.rs : f32[8] at layers.0
      %layers.0.flat.grad = gradient %layers.0.flat.grad.acc param=layers.0.flat : f32[8] at layers.0
      %sq = sum_squares [%layers.0.flat.grad, %head.flat.grad] axis=dp_shard numels=[8, 6, 4] offsets=[0, 8, 0] replicated=[false, false] segments=[2, 1] : f64[3]
      %layers.0.flat.grad.clipped = scale %layers.0.flat.grad, %c : f32[8] at layers.0
      %layers.0.flat.new, %layers.0.flat.exp_avg.new, %layers.0.flat.exp_avg_sq.new = adamw %layers.0.flat, %layers.0.flat.exp_avg, %layers.0.flat.exp_avg_sq, %layers.0.flat.grad.clipped, %step.new, %nf beta1=0.5 beta2=0.75 donates=[0, 1, 2] eps=0.5 weight_decay=0.125 : f32[8/dp_shard], f32[8/dp_shard], f32[8/dp_shard] at layers.0
      carry %layers.0.flat = %layers.0.flat.new
      carry %layers.0.flat.exp_avg = %layers.0.flat.exp_avg.new
      carry %layers.0.flat.exp_avg_sq = %layers.0.flat.exp_avg_sq.new
  )"));
}

TEST_CASE("bucket: each parameter and each shard begins where alignment asks") {
  for (const int64_t world : {2, 3, 8})
    for (const bool bf16 : {false, true}) {
      ir::Graph graph = ir::parse_or_throw(
          sharded_step_text(world, {{"l.0.a", 5, 7}, {"l.0.b", 64, 1}, {"l.0.c", 3, 3}}, {.bf16 = bf16}));
      run_passes(graph, parse_passes("wrap, bucket"));
      for (const plan::BucketLayout& b : plan::bucket_layouts_of(graph)) {
        const int64_t element = bf16 ? 2 : 4;  // as gathered: the smaller
        int64_t end = 0;
        for (size_t i = 0; i < b.members.size(); ++i) {
          CHECK(b.offsets[i] * element % 256 == 0);
          CHECK(b.offsets[i] >= end);
          end = b.offsets[i] + b.numels[i];
        }
        CHECK(b.whole >= end);
        CHECK(b.shard * world == b.whole);
        CHECK(b.shard * element % 256 == 0);
      }
    }
}

TEST_CASE("wrap: modules with numbers are units, what stands after them is one, patterns and brackets choose others") {
  const auto units = [](const std::string& patterns) {
    ir::Graph graph = ir::parse_or_throw(sharded_step_text(2, {{"wte.w", 2, 2},
                                                               {"wpe.w", 2, 2},
                                                               {"h.0.a.w", 2, 2},
                                                               {"h.0.b.w", 2, 2},
                                                               {"h.10.a.w", 2, 2},
                                                               {"ln.w", 2, 2},
                                                               {"out.w", 2, 2}}));
    PassContext context;
    const bool first = wrap(graph, {.units = patterns}, context), again = wrap(graph, {.units = patterns}, context);
    CHECK(first);
    CHECK_FALSE(again);
    std::string got;
    for (const auto& op : graph.ops())
      if (op->is("param")) got += op->attr<std::string>("unit") + " ";
    return got;
  };
  CHECK(units("") == "wte wpe h.0 h.0 h.10 ln_out ln_out ");
  CHECK(units("h.*, [wte, out]") == "wte_out root h.0 h.0 h.10 root wte_out ");
  CHECK(units("h.*.*") == "root root h.0.a h.0.b h.10.a root root ");
  CHECK(units("[wte, wpe], h") == "wte_wpe wte_wpe h h h root root ");
  CHECK_THROWS_WITH_AS(units("layers.*"),
                       doctest::Contains("DataParallelOptions::units = \"layers.*\": layers.* matches no"), UserError);
  CHECK_THROWS_WITH_AS(units("[wte, wpe"), doctest::Contains("a bracket is not closed"), UserError);
  CHECK_THROWS_WITH_AS(units("wte,, wpe"), doctest::Contains("an empty pattern"), UserError);
}

TEST_CASE("wrap: says by which rule a unit came to be") {
  const std::vector<std::string> names = {"emb.weight", "layers.0.w",  "layers.0.v",
                                          "layers.1.w", "norm.weight", "out.weight"};
  using Rules = std::map<std::string, std::string>;
  CHECK(wrap_rules(names, {}) == Rules{{"emb", "top module before the last one with a number"},
                                       {"layers.0", "module with a number"},
                                       {"layers.1", "module with a number"},
                                       {"norm_out", "all after the last module with a number"}});
  CHECK(wrap_rules({"up.weight", "down.weight"}, {}) ==
        Rules{{"up", "top module: none has a number"}, {"down", "top module: none has a number"}});
  CHECK(wrap_rules(names, {.units = "layers.*, [norm, out]"}) == Rules{{"root", "matches no pattern"},
                                                                       {"layers.0", "matches layers.*"},
                                                                       {"layers.1", "matches layers.*"},
                                                                       {"norm_out", "bracket [norm, out]"}});
}

TEST_CASE("bucket: without wrap it says what to run first") {
  ir::Graph graph = ir::parse_or_throw(sharded_step_text(2, {{"w", 2, 2}}));
  PassContext context;
  CHECK_THROWS_WITH_AS(bucket(graph, {}, context), doctest::Contains("run pass wrap first"), UserError);
}

}  // namespace
}  // namespace sfsdp::passes::bucket_test

// SPDX-License-Identifier: BSD-3-Clause
// Steps of several micro-batches on two mesh axes, before and after passes, interpreted on every rank.
#include <doctest/doctest.h>

#include <random>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/sharded_step.h"

namespace sfsdp::passes::micro_batches_test {
namespace {

using testing::Agreement;
using testing::Param;

ir::Graph read(const std::string& text) {
  ir::Graph graph = ir::parse_or_throw(text);
  ir::verify_or_throw(graph);
  return graph;
}

ir::Graph of(const ir::Graph& graph, int64_t micro_batches) {
  ir::Graph copy = graph.clone();
  copy.micro_batches = micro_batches;
  return copy;
}

std::string check_same_meaning(const ir::Graph& before, const ir::Graph& after, Agreement agreement,
                               int64_t micro_batches) {
  return testing::check_same_meaning(of(before, micro_batches), of(after, micro_batches), agreement);
}

ir::Graph rewritten(const ir::Graph& graph, const std::string& passes) {
  ir::Graph after = graph.clone();
  run_passes(after, parse_passes(passes));
  return after;
}

TEST_CASE("micro-batches: gradients reduced by the last one alone are those reduced by each") {
  const std::vector<Param> params = {{"layers.0.w", 4, 2}, {"layers.1.w", 3, 2}};
  const auto step = [&](bool once) {
    return read(testing::sharded_step_text(2, params, {.replicas = 2, .reduce_once = once, .batch = true}));
  };
  const ir::Graph each = step(false), last = step(true);
  for (int64_t k = 1; k <= 4; ++k) CHECK(check_same_meaning(each, last, Agreement::UpToOrderOfSums, k) == "");
}

TEST_CASE("micro-batches: random steps mean the same after passes") {
  const std::string kPasses[] = {
      "split_collectives, prefetch_gathers depth=1, sink_waits, early_all_reduces",
      "merge_duplicates, dead_code, hoist_casts, reshard",
      "remat mode=full, dead_code",
      "wrap units=\"layers.*\", copy_buckets, split_collectives, prefetch_gathers depth=2, sink_waits",
      "hoist_casts, merge_duplicates, split_collectives, sink_waits depth=2",
  };
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 dice(seed);
    std::vector<Param> params;
    for (uint64_t i = 0; i < 2 + dice() % 3; ++i)
      params.push_back({concat("layers.", i, ".w"), static_cast<int64_t>(2 + dice() % 4), 2});
    const ir::Graph before = read(testing::sharded_step_text(
        2, params, {.bf16 = dice() % 2 == 0, .replicas = 2, .reduce_once = dice() % 2 == 0, .batch = true}));
    const std::string& passes = kPasses[seed % std::size(kPasses)];
    CAPTURE(seed);
    CAPTURE(passes);
    for (int64_t k = 1; k <= 4; ++k)
      CHECK(check_same_meaning(before, rewritten(of(before, k), passes), Agreement::Bitwise, k) == "");
  }
}

TEST_CASE("micro-batches: a sum that is lost shows from the second one on") {
  const std::string text = testing::sharded_step_text(2, {{"w", 4, 2}}, {.replicas = 2, .batch = true});
  std::string lost = text;
  const std::string sum = "accumulate %w.rs";
  lost.replace(lost.find(sum), sum.size(), "cast %w.rs");
  CHECK(check_same_meaning(read(text), read(lost), Agreement::Bitwise, 1) == "");
  CHECK(check_same_meaning(read(text), read(lost), Agreement::Bitwise, 2).find("w was") != std::string::npos);
}

}  // namespace
}  // namespace sfsdp::passes::micro_batches_test

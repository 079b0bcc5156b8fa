// SPDX-License-Identifier: BSD-3-Clause
// Ring attention in programs of the IR: what it sends, that it means what the whole step does, and that programs that are wrong in one
// place are refused by the verifier, or mean something else in the interpreter.
#include "sfsdp/parallel/ring_attention.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/parallel/partition.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/interp/interpreter.h"
#include "sfsdp/testing/sentences.h"

namespace sfsdp::parallel {
namespace {

using ir::interp::Array;

const std::string kStep = testing::dedent(testing::kSentences);

std::string partitioned(int64_t ranks, bool balanced, const std::string& step = kStep) {
  ir::Graph graph = ir::parse_or_throw(step);
  graph.mesh = {{"cp", ranks}};
  graph.view = ir::Graph::View::Local;
  const ContextParallelOptions options = {.load_balance = balanced, .rotate_method = RotateMethod::Ring};
  partition(graph, {"cp", ranks}, {}, {}, &options);
  return ir::print(graph);
}

// The largest difference of what any rank returns and carries on from what the whole step does.
double difference(const ir::Graph& parts, int64_t ranks) {
  const ir::Graph whole = ir::parse_or_throw(kStep);
  const ir::interp::RunOptions exact = {.rounding = ir::interp::Rounding::None};
  const auto given = ir::interp::seeded_inputs(whole, 7);
  const auto expected = ir::interp::run(whole, given, exact).ranks[0];
  const auto got =
      ir::interp::run(parts, std::vector<ir::interp::Inputs>(static_cast<size_t>(ranks), given[0]), exact);
  double most = 0;
  const auto compare = [&](const Array& a, const Array& b) {
    REQUIRE(a.data.size() == b.data.size());
    for (size_t i = 0; i < a.data.size(); ++i) {
      const double by = std::abs(a.data[i] - b.data[i]);
      most = by <= most ? most : by;  // nan too
    }
  };
  for (const auto& rank : got.ranks) {
    compare(rank.outputs[0], expected.outputs[0]);
    for (const auto& [name, array] : expected.carried) compare(rank.carried.at(name), array);
  }
  return most;
}

TEST_CASE("ring attention: a step means on each rank what it means as a whole, in float64") {
  for (const int64_t ranks : {2, 4, 8})
    for (const bool balanced : {false, true}) {
      if (balanced && ranks == 8) continue;  // of 8 tokens
      CAPTURE(ranks);
      CAPTURE(balanced);
      const ir::Graph graph = ir::parse_or_throw(partitioned(ranks, balanced));
      for (const auto& d : ir::verify(graph)) MESSAGE(d.message, " ", d.detail);
      CHECK(ir::verify(graph).empty());
      CHECK(plan::verify_layouts(graph) == "");
      CHECK(difference(graph, ranks) < 1e-11);
    }
}

// Each rank is sent the keys and values of each other, forward and backward, and sends gradients of both home.
TEST_CASE("ring attention: permutes alone, as many as there are other ranks") {
  for (const int64_t ranks : {2, 4}) {
    const ir::Graph graph = ir::parse_or_throw(partitioned(ranks, true));
    std::map<std::string, int64_t> counts;
    for (const auto& op : graph.ops())
      if (ir::is_collective(*op) && op->result()->type().dims.size() == 4)
        ++counts[concat(ir::to_string(op->section), ' ', op->opcode)];
    CHECK(counts == std::map<std::string, int64_t>{{"fwd permute", 2 * (ranks - 1)}, {"bwd permute", 4 * (ranks - 1)}});
  }
}

}  // namespace
}  // namespace sfsdp::parallel

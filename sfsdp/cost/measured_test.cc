// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/measured.h"

#include <doctest/doctest.h>

#include <cmath>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/calibration.h"
#include "sfsdp/cost/collective_cost.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::cost::measured_test {
namespace {

TEST_CASE("curve: exact at its points, between its neighbours in between, monotone where they are") {
  const std::vector<std::pair<double, double>> points = {{1024, 3e-5}, {4096, 3.1e-5}, {65536, 2e-4}, {1048576, 3e-3}};
  const Curve curve({points[2], points[0], points[3], points[1]});  // in any order
  for (const auto& [work, seconds] : points) CHECK(curve.at(work) == seconds);
  for (size_t i = 1; i < points.size(); ++i) {
    const double middle = std::sqrt(points[i - 1].first * points[i].first);
    CHECK(curve.at(middle) == doctest::Approx(std::sqrt(points[i - 1].second * points[i].second)));
    CHECK(curve.at(middle) > points[i - 1].second);
    CHECK(curve.at(middle) < points[i].second);
  }
  double before = 0;
  for (double work = 1; work < 1e8; work *= 1.1) {
    CHECK(curve.at(work) >= before);
    before = curve.at(work);
  }
}

TEST_CASE("curve: beyond its ends, proportional above and the smallest point's seconds below") {
  const Curve curve({{100, 2}, {1000, 5}});
  CHECK(curve.at(3000) == doctest::Approx(15));
  CHECK(curve.at(2e6) == doctest::Approx(1e4));
  CHECK(curve.at(10) == 2);
  CHECK(curve.at(0) == 2);
  CHECK(Curve({{100, 2}}).at(200) == doctest::Approx(4));
}

TEST_CASE("curve: points of the same work are averaged; what is no measurement is refused") {
  CHECK(Curve({{8, 2}, {8, 8}}).at(8) == doctest::Approx(4));
  CHECK_THROWS(Curve({}));
  CHECK_THROWS(Curve({{8, 0}}));
  CHECK_THROWS(Curve({{0, 1}}));
}

constexpr const char* kStep = R"(
graph mesh [dp_shard=2] view local
  %w = param name=w : f32[2/dp_shard, 4]
  %x = input name=x : f32[6, 4] own(dp_shard)
fwd:
  %w.full = all_gather %w axis=dp_shard dim=0 : f32[4, 4]
  %t = aten.t %w.full : f32[4, 4]{1, 4}
  %y = aten.mm %x, %t : f32[6, 4]
  %z = aten.mm %x, %w.full : f32[6, 4]
  %a = aten.neg %z : f32[6, 4]
  %b = aten.neg %y : f32[6, 4]
  return %a, %b
)";

TEST_CASE("measured: the point of an op's own types, else its opcode's curve; products share one") {
  const ir::Graph graph = ir::parse_or_throw(kStep);
  const auto ops = ops_to_measure(graph);
  REQUIRE(ops.size() == 3);  // one product for each form of the weight, one neg
  CHECK(types_of(*ops[0]) == "f32[6, 4] f32[4, 4]{1, 4} -> f32[6, 4]");
  CHECK(types_of(*ops[1]) == "f32[6, 4] f32[4, 4] -> f32[6, 4]");
  Measured measured;
  measured.ops = {{"aten.mm", types_of(*ops[0]), 192, 256, 7},
                  {"aten.mm", "f32[60, 4] f32[4, 4] -> f32[60, 4]", 1920, 2000, 70},
                  {"aten.exp", types_of(*ops[2]), 0, 192, 1}};
  const MeasuredOps table(measured);
  CHECK(table.seconds(*ops[0], 192, 256) == 7);
  CHECK(table.seconds(*ops[1], 192 * 5, 256) == doctest::Approx(35));  // by flops
  CHECK_FALSE(table.seconds(*ops[2], 0, 192));                         // no neg was measured
  CHECK_FALSE(MeasuredOps(Measured{}).seconds(*ops[0], 192, 256));
}

TEST_CASE("measured: kernels and collectives take their seconds from it, where it has an answer") {
  const ir::Graph graph = ir::parse_or_throw(kStep);
  Machine m;
  m.peak_f32 = m.peak_bf16 = m.memory_bandwidth = 1;
  m.matmul_efficiency = m.memory_efficiency = 1;
  m.node.bandwidth = m.network.bandwidth = 1;
  m.devices_per_node = 2;
  const double formula = collective_seconds("all_gather", 64, {.size = 2}, m);
  m.measured.ops = {{"aten.neg", "f32[6, 4] -> f32[6, 4]", 0, 192, 1000}};
  m.measured.collectives = {{"all_gather", 2, 16, 3}, {"all_gather", 2, 256, 12}, {"all_gather", 4, 64, 99}};
  const auto kernels = price_kernels(graph, m, Execution::Reference).kernels;
  REQUIRE(kernels.size() == 4);
  CHECK(kernels[0].seconds == 256);  // max(192 flops, 256 bytes) at 1 a second
  CHECK(kernels[2].seconds == 1000);
  CHECK(kernels[3].seconds == 1000);
  CHECK(collective_seconds("all_gather", 64, {.size = 2}, m) == doctest::Approx(6));
  CHECK(collective_seconds("reduce_scatter", 64, {.size = 2}, m) == doctest::Approx(formula));
  m.devices_per_node = 1;  // across nodes nothing was measured
  CHECK(collective_seconds("all_gather", 64, {.size = 2}, m) == doctest::Approx(formula));
}

TEST_CASE(
    "measured: a kernel of a plan takes its own seconds, by its ops, types and named kernels, in each micro-batch") {
  const auto kernel_with = [](const std::string& attrs) {
    return ir::parse_or_throw(concat(R"(
graph mesh [one=1] view local
  %x = input name=x : f32[6, 4]
  %w = input name=w : f32[5, 4]
bwd:
  %a = linear %x, %w kernel=0)",
                                     attrs, R"( : f32[6, 5]
  %b = aten.neg %a kernel=0 : f32[6, 5]
  %s = accumulate %b kernel=0 : f32[6, 5]
  return %s
)"));
  };
  const ir::Graph graph = kernel_with(" product_kernel=onednn.matmul"),
                  other = kernel_with(" product_kernel=openblas.gemm"), unnamed = kernel_with("");
  Machine m;
  m.peak_f32 = m.peak_bf16 = m.memory_bandwidth = 1;
  m.matmul_efficiency = m.memory_efficiency = 1;
  m.measured.kernels = {{.ops =
                             "linear f32[6, 4] f32[5, 4] -> f32[6, 5] onednn.matmul; aten.neg f32[6, 5] -> f32[6, 5]; "
                             "accumulate f32[6, 5] -> f32[6, 5]",
                         .seconds = 7,
                         .first = 5}};
  const auto priced = [&](const ir::Graph& g, Execution execution) {
    const auto kernels = price_kernels(g, m, execution).kernels;
    REQUIRE(kernels.size() >= 1);
    return kernels[0];
  };
  const Kernel kernel = priced(graph, Execution::Fused);
  CHECK(ops_of(kernel.ops) == m.measured.kernels[0].ops);
  CHECK(kernel.seconds_at(1) == 7);
  CHECK(kernel.seconds_at(0) == 5);
  CHECK(priced(other, Execution::Fused).seconds > 100);   // another library's product
  CHECK(priced(unnamed, Execution::Fused).seconds == 7);  // the machine's choice
  CHECK(priced(graph, Execution::Eager).seconds != 7);    // PyTorch's kernels are others
}

TEST_CASE("calibration: what is measured of a step, and what follows for other sizes") {
  const ir::Graph graph = ir::parse_or_throw(kStep);
  const std::vector<CollectiveSize> of_step = collectives_of_step(graph, 4096);
  CHECK(of_step == std::vector<CollectiveSize>{{"all_gather", 64}});
  CHECK(collectives_of_step(graph, 63).empty());
  CHECK(collectives_by_size(of_step, 4096).size() == 3 * 2);  // 1 and 4 KiB of each kind
  CHECK(collectives_by_size({{"all_reduce", 1024}}, 4096).size() == 3 * 2 - 1);
  const ir::Graph pointwise = ir::parse_or_throw(pointwise_graph(65536));
  CHECK(ops_to_measure(pointwise).size() == 3 * 3);

  Machine m;
  m.measured.ops = {{"aten.mm", "f32[8, 8] f32[8, 8] -> f32[8, 8]", 1000, 768, 2},
                    {"aten.mm", "f32[4, 4] f32[4, 4] -> f32[4, 4]", 100, 192, 1},
                    {"aten.clone", "f32[8] -> f32[8]", 0, 64, 0.5},
                    {"aten.clone", "f32[1024] -> f32[1024]", 0, 8192, 2},
                    {"aten.exp", "f32[1024] -> f32[1024]", 0, 8192, 4}};
  m.measured.collectives = {{"all_gather", 4, 1024, 1}, {"all_gather", 4, 1 << 20, 1025}, {"all_reduce", 4, 64, 9}};
  fit_formulas(m, 0.25);
  CHECK(m.peak_f32 == 500);
  CHECK(m.matmul_efficiency == doctest::Approx(1100.0 / 3 / 500));
  CHECK(m.memory_bandwidth == 4096);
  CHECK(m.memory_efficiency == doctest::Approx(0.5));
  CHECK(m.launch == 0.5);
  CHECK(m.dispatch == 0.25);
  CHECK(m.node.base_latency == 1);
  CHECK(m.node.bandwidth == doctest::Approx(0.75 * 1024));
}

TEST_CASE("calibration: products of a plan raise the peak, and keep attention's rate") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [one=1] view local
  %x = input name=x : f32[10, 10]
  %h = input name=h : bf16[10, 10]
fwd:
  %a = linear %x, %x kernel=0 : f32[10, 10]
  %b = linear %a, %x kernel=1 : f32[10, 10]
  %c = linear %h, %h kernel=2 : bf16[10, 10]
  %d = aten.neg %b kernel=3 : f32[10, 10]
  return %c, %d
)");
  Machine m;
  m.peak_f32 = 100, m.peak_bf16 = 400, m.attention_efficiency = m.vendor_attention_efficiency = 0.5;
  const auto ops = graph.ops();
  const auto kernel = [&](size_t op, double flops, double seconds) {
    Kernel k;
    k.ops = {ops[op].get()};
    k.flops = flops, k.seconds = seconds;
    return k;
  };
  fit_products(m, {kernel(2, 2000, 4), kernel(3, 2000, 10), kernel(4, 2000, 2.5), kernel(5, 0, 1)});
  CHECK(m.peak_f32 == 500);
  CHECK(m.peak_bf16 == 800);
  CHECK(m.matmul_efficiency == doctest::Approx((4 + 4 + 2.5) / 16.5));
  CHECK(m.attention_efficiency == doctest::Approx(0.25));  // 200 a second, as before
}

}  // namespace
}  // namespace sfsdp::cost::measured_test

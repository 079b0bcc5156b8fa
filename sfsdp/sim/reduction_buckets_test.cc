// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/reduction_buckets.h"

#include <doctest/doctest.h>

#include "sfsdp/ir/parser.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::sim::reduction_buckets_test {
namespace {

// Three gradients of 1,000, 500 and 500 elements.
constexpr const char* kText = R"(
graph mesh [dp_shard=2] view local
  %a = input name=a : bf16[1000] own(dp_shard)
  %b = input name=b : bf16[500] own(dp_shard)
fwd:
  %y = aten.neg %a : bf16[1000]
bwd:
  %ga = aten.neg %y : bf16[1000]
  %ra.start = reduce_scatter.start %ga axis=dp_shard dim=0 : async bf16[500]
  %gb = aten.neg %b : bf16[500]
  %rb.start = reduce_scatter.start %gb axis=dp_shard dim=0 : async bf16[250]
  %gc = aten.neg %b : bf16[500]
  %rc.start = reduce_scatter.start %gc axis=dp_shard dim=0 : async bf16[250]
clip:
  %ra = wait %ra.start : bf16[500]
  %rb = wait %rb.start : bf16[250]
  %rc = wait %rc.start : bf16[250]
  return %ra, %rb, %rc
)";

cost::Machine machine() {
  cost::Machine m;
  m.peak_bf16 = m.peak_f32 = m.memory_bandwidth = 1e12;
  m.multiprocessors = 132;
  m.devices_per_node = 8;
  m.node = {.bandwidth = 1000, .base_latency = 1};
  m.network = m.node;
  return m;
}

TEST_CASE("reduction buckets: the last of a bucket has the bytes of all, and its latency once") {
  const ir::Graph graph = ir::parse_or_throw(kText);
  const auto bytes = [&](int64_t elements) {
    RankProgram program = make_program(graph, machine(), cost::Execution::Eager, cost::System::Fsdp2);
    merge_reductions(program, elements, machine());
    std::vector<double> all;
    for (const Collective& c : program.collectives) {
      all.push_back(c.bytes);
      const double alone =
          c.bytes > 0 ? cost::collective_cost(c.kind, c.bytes, program.groups[c.communicator], machine()).seconds() : 0;
      CHECK(c.cost.seconds() == doctest::Approx(alone));
    }
    return all;
  };
  using Bytes = std::vector<double>;
  CHECK(bytes(999) == Bytes{2000, 1000, 1000});  // the first alone is more than a bucket
  CHECK(bytes(1499) == Bytes{2000, 0, 2000});    // the second would be too much
  CHECK(bytes(1500) == Bytes{0, 3000, 1000});
  CHECK(bytes(2000) == Bytes{0, 0, 4000});
}

TEST_CASE("reduction buckets: a step has as many latencies as buckets, and all of its bytes") {
  const ir::Graph graph = ir::parse_or_throw(kText);
  SimulateOptions options{.execution = cost::Execution::Eager, .system = cost::System::Fsdp2};
  const Simulation apart = simulate(graph, machine(), options);
  options.reduce_bucket = 2000;
  const Simulation together = simulate(graph, machine(), options);
  CHECK(together.communicated_bytes.at("reduce_scatter") == apart.communicated_bytes.at("reduce_scatter"));
  CHECK(apart.communication_seconds.at("reduce_scatter") - together.communication_seconds.at("reduce_scatter") > 1.0);
  CHECK(together.step_seconds < apart.step_seconds);
}

}  // namespace
}  // namespace sfsdp::sim::reduction_buckets_test

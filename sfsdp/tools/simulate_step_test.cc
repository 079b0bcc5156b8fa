// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/simulate_step.h"

#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/device_memory.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::tools::simulate_step_test {
namespace {

constexpr int64_t kMiB = 1 << 20;

// A gather whose buffer forward needs, and 64 MiB on another stream that backward needs when it is free again.
constexpr const char* kTwoStreams = R"(
graph mesh [dp_shard=2] view local
  %w = param name=w : f32[4194304/dp_shard] at a
  %x = input name=x : bf16[8388608] own(dp_shard)
fwd:
  %low = cast %w : bf16[4194304/dp_shard] at a
  %w.start = all_gather.start %low axis=dp_shard dim=0 : async bf16[8388608] at a
  %w.full = wait %w.start : bf16[8388608] at a
  %y = aten.mul.Tensor %x, %w.full : bf16[8388608] at a
bwd:
  %big = full value=1.0 : bf16[33554432]
  return %y, %big
)";

SimulateReport report_in(int64_t room, const ir::Graph& graph) {
  SimulateSetup setup;
  setup.machine.multiprocessors = 132;
  setup.machine.peak_bf16 = setup.machine.peak_f32 = 1e15;
  setup.machine.memory_bandwidth = setup.machine.node.bandwidth = setup.machine.network.bandwidth = 1e12;
  setup.machine.memory_bytes = static_cast<double>(room + cost::bytes_outside(setup.machine, graph.mesh));
  setup.execution = "eager";
  setup.options.execution = cost::Execution::Eager;
  setup.options.system = cost::System::Fsdp2;
  setup.pytorch = sim::PyTorchOptions{};
  setup.segments = plan::CachingAllocator::Segments::Fixed;
  return simulate_step(graph, {}, setup, {.model = "test", .mesh = "dp_shard=2", .world = 2});
}

SimulateSetup setup_of(std::vector<std::string> args) {
  return simulate_setup(parse_request(find_command("simulate"), args), {});
}

TEST_CASE("simulate: rope is several kernels, Inductor's or one, as the mode says") {
  const auto check = [](const char* execution, const char* rope, bool complex_numbers, bool halves) {
    CAPTURE(execution);
    CAPTURE(rope);
    const SimulateSetup setup =
        setup_of({"--machine", "dgx_h100", "--simulate.execution", execution, "--simulate.rope", rope});
    CHECK(setup.options.composites.rope == complex_numbers);
    CHECK(setup.options.composites.real_rope == halves);
  };
  check("eager", "complex", true, true);
  check("eager", "real", true, true);
  check("eager", "fused", false, false);
  check("compile", "complex", true, false);
  check("compile", "real", false, false);
  check("compile", "fused", false, false);
  check("fused", "complex", false, false);
}

TEST_CASE("simulate: products add up gradients where a library of the machine can") {
  const auto in_products = [](const char* machine, const char* execution) {
    const SimulateSetup setup =
        setup_of({"--machine", machine, "--simulate.execution", execution, "--simulate.accumulation", "product"});
    CHECK(setup.options.composites.product_sums == (setup.pytorch && setup.pytorch->product_sums));
    return setup.options.composites.product_sums;
  };
  CHECK(in_products("dgx_h100", "eager"));
  CHECK(in_products("a100_80g", "compile"));
  CHECK(!in_products("dgx_h100", "fused"));
  CHECK_THROWS_WITH_AS(in_products("cpu_local", "eager"), doctest::Contains("expected kernel: no library"), UserError);
}

TEST_CASE("simulate: retries of a full allocator are in the step where the reserve is above the room beyond doubt") {
  const ir::Graph graph = ir::parse_or_throw(kTwoStreams);
  const SimulateReport free = report_in(100000 * kMiB, graph);
  const double step = free.simulation.step_seconds;
  const int64_t held = free.pytorch->held_bytes, reserved = free.pytorch->reserved_bytes;
  REQUIRE(static_cast<double>(held) * 1.1 < static_cast<double>(reserved));
  CHECK(free.pytorch->retries == 0);
  CHECK(free.allocator_seconds == 0);

  const SimulateReport full = report_in(held, graph);
  CHECK(full.fits());
  CHECK(full.pytorch->retries > 0);
  CHECK(full.allocator_seconds == doctest::Approx(cost::moving_seconds(full.pytorch->moved_bytes)));
  CHECK(full.simulation.step_seconds == doctest::Approx(step + full.allocator_seconds));
  std::ostringstream text, json;
  print_report(text, full);
  CHECK(text.str().find(" retries and ") != std::string::npos);
  CHECK(text.str().find(" ms a step, counted; ") != std::string::npos);
  print_report_json(json, full);
  CHECK(json.str().find("\"allocator_retries\": " + shortest(full.pytorch->retries)) != std::string::npos);

  // Nearer to the room than peaks are known nobody knows whether the allocator is full.
  const SimulateReport near = report_in(reserved - 2 * kMiB, graph);
  CHECK(near.simulation.step_seconds == step);
  std::ostringstream doubtful;
  print_report(doubtful, near);
  CHECK(doubtful.str().find(" ms a step, not counted; ") != std::string::npos);

  // What does not fit at all has no step.
  const SimulateReport small = report_in(held / 2, graph);
  CHECK(!small.fits());
  CHECK(small.simulation.step_seconds == step);
}

}  // namespace
}  // namespace sfsdp::tools::simulate_step_test

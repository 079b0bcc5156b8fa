// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/report/memory_timeline.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "sfsdp/ir/parser.h"
#include "sfsdp/sim/report/trace.h"
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::sim::memory_timeline_test {
namespace {

// One weight; two products forward, two backward, and one op that backward computes again.
constexpr const char* kStep = R"(
graph mesh [dp_shard=2] view local
  %w = param name=w : f32[32/dp_shard, 64]
  %x = input name=x : f32[64, 64] own(dp_shard)
fwd:
  %w.start = all_gather.start %w axis=dp_shard dim=0 : async f32[64, 64]
  %w.full = wait %w.start : f32[64, 64]
  %h = aten.mm %x, %w.full : f32[64, 64]
  %u = aten.neg %h : f32[64, 64]
  %y = aten.mm %u, %w.full : f32[64, 64]
bwd:
  %h.again = aten.neg %x : f32[64, 64]
  %g = aten.mm %y, %h bwd_of=%y : f32[64, 64]
  %gw = aten.mm %g, %h.again bwd_of=%h : f32[64, 64]
  %w.grad.start = reduce_scatter.start %gw axis=dp_shard dim=0 : async f32[32, 64]
  %w.grad = wait %w.grad.start : f32[32, 64]
  return %w.grad
)";

cost::Machine machine() {
  cost::Machine m;
  m.peak_bf16 = m.peak_f32 = 1e6;
  m.memory_bandwidth = 1e6;
  m.devices_per_node = 8;
  m.node = {1e4, 0.1, 0};
  m.network = {1e4, 0.1, 0};
  return m;
}

TEST_CASE("memory over time: each buffer is of the kind it serves") {
  const ir::Graph graph = ir::parse_or_throw(kStep);
  const plan::MemoryPlan plan = plan::plan_memory(graph);
  const auto kinds = memory_kinds(graph, plan);
  std::map<std::string, std::string> names;
  for (size_t b = 0; b < kinds.size(); ++b) names[plan.buffers[b].value->name()] = to_string(kinds[b]);
  CHECK(names == std::map<std::string, std::string>{{"x", "activations"},
                                                    {"w.start", "parameters"},
                                                    {"h", "activations"},
                                                    {"u", "workspace"},
                                                    {"y", "activations"},
                                                    {"h.again", "activations"},
                                                    {"g", "workspace"},
                                                    {"gw", "gradients"},
                                                    {"w.grad.start", "gradients"}});
}

TEST_CASE("memory over time: sorted, within the step, and as full as the plan says") {
  ir::Graph graph = ir::parse_or_throw(kStep);
  const plan::MemoryPlan plan = plan::plan_memory(graph);
  for (const int64_t micro_batches : {1, 2}) {
    graph.micro_batches = micro_batches;
    const Simulation s = simulate(graph, machine());
    const auto samples = memory_over_time(graph, plan, s);
    CHECK(std::ranges::is_sorted(samples, {}, &MemorySample::at));
    CHECK(samples.back().at == s.step_seconds);
    int64_t peak = 0;
    for (const MemorySample& m : samples) peak = std::max(peak, m.total());
    CHECK(peak == plan.live_bytes);
    // Only what the step returns is left.
    CHECK(samples.back().bytes == std::array<int64_t, kMemoryKinds>{0, 0, 32 * 64 * 4, 0});
    // The first product begins when the gather is over and reads the whole weight.
    const auto product = std::ranges::find_if(s.events, [](const Event& e) { return e.op->is("aten.mm"); });
    const auto at = std::ranges::find_if(samples, [&](const MemorySample& m) {
      return m.at == product->begin && m.bytes[static_cast<size_t>(MemoryKind::Activations)] == 2 * 64 * 64 * 4;
    });
    REQUIRE(at != samples.end());
    CHECK(at->bytes == std::array<int64_t, kMemoryKinds>{64 * 64 * 4, 2 * 64 * 64 * 4, 0, 0});
  }
}

// What the plan has alive at a position, counted buffer by buffer.
int64_t alive_in(const plan::MemoryPlan& plan, int64_t position) {
  int64_t bytes = 0;
  for (const plan::Buffer& b : plan.buffers)
    if (b.first <= position && position <= b.last) bytes += b.bytes;
  return bytes;
}

// What the series says of the time up to `at`, or from it on.
int64_t shown_before(const std::vector<MemorySample>& samples, double at) {
  const auto after = std::ranges::lower_bound(samples, at, {}, &MemorySample::at);
  return after == samples.begin() ? 0 : std::prev(after)->total();
}
int64_t shown_from(const std::vector<MemorySample>& samples, double at) {
  const auto after = std::ranges::upper_bound(samples, at, {}, &MemorySample::at);
  return after == samples.begin() ? 0 : std::prev(after)->total();
}

// Kernel 1 begins where %c stands and takes the gathered weight, so it waits at a place before the wait's own.
constexpr const char* kWaitInsideKernel = R"(
graph mesh [dp_shard=2] view local
  %w = param name=w : f32[32/dp_shard, 64]
  %x = input name=x : f32[64, 64] own(dp_shard)
fwd:
  %g = all_gather.start %w axis=dp_shard dim=0 : async f32[64, 64]
  %a = aten.mm %x, %x kernel=0 : f32[64, 64]
  %c = aten.neg %a kernel=1 : f32[64, 64]
  %f = wait %g : f32[64, 64]
  %b = aten.mul.Tensor %c, %f kernel=1 : f32[64, 64]
  %d = aten.mm %b, %b kernel=2 : f32[64, 64]
  %e = aten.mm %d, %d kernel=3 : f32[64, 64]
  return %e
)";

TEST_CASE("memory over time: while a kernel runs it is what the plan has alive there") {
  std::ifstream file(testing::source_dir() + "/sfsdp/plan/testdata/llama_step.txt");
  REQUIRE(file);
  const std::string llama{std::istreambuf_iterator<char>(file), {}};
  for (const std::string& text : {std::string(kStep), std::string(kWaitInsideKernel), llama})
    for (const int64_t micro_batches : {1, 2, 4})
      for (const StepGathers gathers : {StepGathers::Forward, StepGathers::Update}) {
        ir::Graph graph = ir::parse_or_throw(text);
        graph.micro_batches = micro_batches;
        const plan::MemoryPlan plan = plan::plan_memory(graph);
        const Simulation s = simulate(graph, machine(), {.step_gathers = gathers});
        const auto samples = memory_over_time(graph, plan, s);
        CHECK(std::ranges::is_sorted(samples, {}, &MemorySample::at));
        int64_t kernels = 0, peak = 0;
        for (const Event& e : s.events) {
          if (e.kind != Event::Kernel || e.end <= e.begin) continue;
          ++kernels;
          CHECK(shown_from(samples, e.begin) == alive_in(plan, e.position));
          CHECK(shown_before(samples, e.end) == alive_in(plan, e.position));
        }
        CHECK(kernels > 0);
        for (const MemorySample& m : samples) peak = std::max(peak, m.total());
        CHECK(peak == plan.live_bytes);
      }
}

TEST_CASE("chrome trace: memory is a counter on the same axis") {
  const ir::Graph graph = ir::parse_or_throw(kStep);
  const plan::MemoryPlan plan = plan::plan_memory(graph);
  const Simulation s = simulate(graph, machine());
  const std::string trace = chrome_trace(s, memory_over_time(graph, plan, s), plan.state_bytes);
  CHECK(trace.find(R"("args":{"state":8192,"parameters":16384,"activations":32768,"gradients":0,"workspace":0})") !=
        std::string::npos);
  CHECK(chrome_trace(s).find("\"ph\":\"C\"") == std::string::npos);
}

}  // namespace
}  // namespace sfsdp::sim::memory_timeline_test

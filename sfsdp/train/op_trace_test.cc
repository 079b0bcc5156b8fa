// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/op_trace.h"

#include <doctest/doctest.h>

#include <string>

#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::train {
namespace {

// w: wait, u: warm-up, a: active, W: active and written.
std::string phases(const Profiling& config, int64_t steps) {
  std::string text;
  for (int64_t k = 1; k <= steps; ++k) text += "wuaW"[static_cast<int>(profile_phase(config, k))];
  return text;
}

// torch.profiler.schedule(wait = freq - active - warmup, warmup, active), and TorchTitan writes when a round ends.
TEST_CASE("of every profile_freq steps the last are kept, and those before them timed") {
  CHECK(phases({.enable_profiling = true}, 20) == "wwwwwwuuuWwwwwwwuuuW");
  CHECK(phases({.enable_profiling = true, .profile_freq = 5, .profiler_active = 2, .profiler_warmup = 1}, 11) ==
        "wwuaWwwuaWw");
  CHECK(phases({.enable_profiling = true, .profile_freq = 1, .profiler_active = 1, .profiler_warmup = 0}, 3) == "WWW");
  CHECK(phases({}, 20) == std::string(20, 'w'));
}

TEST_CASE("a trace has an event for each op, from where the one before it ended, in a lane of its kind") {
  const ir::Graph graph = ir::parse_or_throw(R"(graph mesh [dp_shard=2] view local
  %x = input name=x : f32[4] at blocks.1
fwd:
  %y = aten.relu %x : f32[4] at blocks.1
  %all = all_gather %y axis=dp_shard dim=0 : f32[8] at blocks.1
  return %all
)");
  OpTrace trace(3);
  trace.begin_step(10, 1000);
  double now = 1000;
  for (const auto& op : graph.ops()) trace.ran(*op, now += 2.5);
  trace.end_step(now + 1);
  const JsonValue root = parse_json(trace.json(), "trace.json");
  const auto& events = *root.find("traceEvents")->as<JsonArray>();
  REQUIRE(events.size() == 3 + 3 + 1 + 1);
  const auto text = [](const JsonValue& event, const char* key) { return *event.find(key)->as<std::string>(); };
  const JsonValue &relu = events[4], &gather = events[5], &step = events[6];
  CHECK(text(relu, "name") == "aten.relu");
  CHECK(text(relu, "cat") == "fwd");
  CHECK(*relu.find("ts")->as<double>() == 1002.5);
  CHECK(*relu.find("dur")->as<double>() == 2.5);
  CHECK(*relu.find("pid")->as<uint64_t>() == 3);
  CHECK(*relu.find("tid")->as<uint64_t>() == 1);
  CHECK(text(*relu.find("args"), "module") == "blocks.1");
  CHECK(text(*relu.find("args"), "value") == "%y");
  CHECK(*relu.find("args")->find("bytes")->as<uint64_t>() == 16);
  CHECK(*gather.find("tid")->as<uint64_t>() == 2);
  CHECK(text(step, "name") == "step 10");
  CHECK(*step.find("dur")->as<double>() == 8.5);
}

TEST_CASE("a trace lies where TorchTitan's does; a folder that cannot be made is named") {
  JobConfig config;
  const testing::TemporaryFolder folder;
  config.job.dump_folder = folder.path();
  const std::string path = trace_path(config, 10, 1);
  CHECK(path == folder / "profile_traces/iteration_10/rank1_trace.json");
  write_trace(path, "{}");
  CHECK(read_text_file(path, 100) == "{}");
  CHECK_THROWS_WITH_AS(write_trace("/proc/nowhere/t.json", "{}"), doctest::Contains("/proc/nowhere/t.json.tmp: cannot"),
                       UserError);
}

}  // namespace
}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/op_trace.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::train::op_trace_test {
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

std::string text_of(const JsonValue& event, const char* key) { return *event.find(key)->as<std::string>(); }
double number_of(const JsonValue& event, const char* key) {
  const JsonValue* value = event.find(key);
  if (const auto* whole = value->as<uint64_t>()) return static_cast<double>(*whole);
  return *value->as<double>();
}

// Two communicators, a fused kernel, a view.
const char* const kStep = R"(graph mesh [dp_replicate=2, dp_shard=2] view local
  %x = input name=x : f32[4] at blocks.1
fwd:
  %y = aten.relu %x kernel=0 : f32[4] at blocks.1
  %z = aten.neg %y kernel=0 : f32[4] at blocks.1
  %v = aten.view %z size=[2, 2] : f32[2, 2] at blocks.1
  %all = all_gather %v axis=dp_shard dim=0 : f32[4, 2] at blocks.1
  %sum = all_reduce %all axis=dp_replicate : f32[4, 2] at blocks.2
  return %sum
)";

TEST_CASE(
    "a trace has the rows of a simulated one: an event for each kernel, a lane for each communicator, which the "
    "program waits for") {
  const ir::Graph graph = ir::parse_or_throw(kStep);
  StepRuns runs(graph);
  runs.begin(10, 1000);
  double now = 1000;
  for (const auto& op : graph.ops()) runs.ran(*op, now += 2.5);
  runs.end(now + 1);
  OpTrace trace(3);
  trace.add(runs);
  const JsonValue root = parse_json(trace.json(), "trace.json");
  std::vector<std::string> lanes, events;
  for (const JsonValue& event : *root.find("traceEvents")->as<JsonArray>()) {
    CHECK(number_of(event, "pid") == 3);
    if (text_of(event, "name") == "thread_name") lanes.push_back(text_of(*event.find("args"), "name"));
    if (text_of(event, "ph") != "X") continue;
    events.push_back(concat(text_of(event, "name"), " on ", number_of(event, "tid"), " from ", number_of(event, "ts"),
                            " for ", number_of(event, "dur")));
  }
  CHECK(lanes == std::vector<std::string>{"compute", "dp_shard", "dp_replicate", "steps"});
  // %x and the view move nothing: what comes before them is not the time of what comes after.
  CHECK(events == std::vector<std::string>{
                      "aten.relu %y and 1 more on 0 from 1002.5 for 5",
                      "start all_gather %all on 0 from 1010 for 0",
                      "all_gather %all on 1 from 1010 for 2.5",
                      "wait for all_gather %all on 0 from 1010 for 2.5",
                      "start all_reduce %sum on 0 from 1012.5 for 0",
                      "all_reduce %sum on 2 from 1012.5 for 2.5",
                      "wait for all_reduce %sum on 0 from 1012.5 for 2.5",
                      "step 10 on 3 from 1000 for 16",
                  });
  const std::string text = trace.json();
  CHECK(text.find(R"("cat":"fwd","args":{"module":"blocks.1","bytes":32})") !=
        std::string::npos);  // reads 16, writes 16
  CHECK(text.find(R"("name":"all_gather %all","cat":"fwd","args":{"module":"blocks.1","bytes":32})") !=
        std::string::npos);
  CHECK(text.find(R"({"ph":"s","bp":"e","pid":3,"tid":0,"ts":1010.000000,"id":0)") != std::string::npos);
  CHECK(text.find(R"({"ph":"t","bp":"e","pid":3,"tid":2,"ts":1012.500000,"id":1)") != std::string::npos);
  trace.clear();
  CHECK(trace.json().find("relu") == std::string::npos);
}

TEST_CASE("a kernel that runs twice in a row is two events, and steps of other communicators share a trace") {
  const ir::Graph one = ir::parse_or_throw(
      "graph mesh [] view local\n  %x = input name=x : f32[4]\nfwd:\n"
      "  %y = aten.relu %x kernel=0 : f32[4]\n  %z = aten.neg %y kernel=0 : f32[4]\n"
      "  return %z\n");
  const ir::Op &relu = *one.ops()[1], &neg = *one.ops()[2];
  StepRuns runs(one);
  runs.begin(1, 0);
  runs.ran(relu, 4);
  runs.ran(neg, 5);
  runs.ran(relu, 8);
  runs.ran(neg, 9);
  runs.end(9);
  REQUIRE(runs.runs().size() == 2);
  CHECK(runs.runs()[0].end_us == 5);
  CHECK(runs.runs()[1].begin_us == 5);
  CHECK(runs.runs()[1].end_us == 9);
  const ir::Graph other = ir::parse_or_throw(kStep);
  StepRuns second(other);
  second.begin(2, 9);
  second.end(10);
  OpTrace trace(0);
  trace.add(runs);
  trace.add(second);
  CHECK(trace.json().find("\"step 2\"") != std::string::npos);
}

TEST_CASE("an op that is told of before its kernel has run is no run of the kernel") {
  const ir::Graph graph = ir::parse_or_throw(R"(graph mesh [] view local
  %x = input name=x : f32[4]
fwd:
  %a = aten.relu %x kernel=0 : f32[4]
  %y = aten.relu %x kernel=1 : f32[4]
  %z = aten.neg %y kernel=1 : f32[4]
  %b = aten.neg %z kernel=2 : f32[4]
  %c = aten.neg %b kernel=2 : f32[4]
  return %c
)");
  const auto& ops = graph.ops();
  StepRuns runs(graph);
  runs.begin(1, 0);
  runs.ran(*ops[1], 3);
  runs.ran(*ops[2], 4);  // with the first kernel, though it is computed in the second
  runs.ran(*ops[3], 9);
  runs.ran(*ops[4], 12);  // of a kernel whose last op nobody tells of
  runs.end(13);
  REQUIRE(runs.runs().size() == 3);
  CHECK(runs.runs()[1].task == 1);
  CHECK(runs.runs()[1].begin_us == 3);  // not told apart from the start of the kernel here, as it is the next one
  CHECK(runs.runs()[2].task == 2);
  CHECK(runs.runs()[2].end_us == 12);
  StepRuns far(graph);
  far.begin(1, 0);
  far.ran(*ops[2], 1);
  far.ran(*ops[1], 3);
  far.ran(*ops[3], 9);
  far.end(9);
  REQUIRE(far.runs().size() == 2);
  CHECK(far.runs()[0].task == 0);
  CHECK(far.runs()[1].task == 1);
  CHECK(far.runs()[1].begin_us == 3);
}

TEST_CASE("a trace lies where TorchTitan's does; a folder that cannot be made is named") {
  JobConfig config;
  const testing::TemporaryFolder folder;
  config.job.dump_folder = folder.path();
  const std::string path = trace_path(config, 10, 1);
  CHECK(path == folder / "profile_traces/iteration_10/rank1_trace.json");
  CHECK(table_path(config, 10, 1) == folder / "profile_traces/iteration_10/rank1_table.txt");
  write_trace(path, "{}");
  CHECK(read_text_file(path, 100) == "{}");
  CHECK_THROWS_WITH_AS(write_trace("/proc/nowhere/t.json", "{}"), doctest::Contains("/proc/nowhere/t.json.tmp: cannot"),
                       UserError);
}

}  // namespace
}  // namespace sfsdp::train::op_trace_test

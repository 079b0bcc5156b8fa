// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/report/html_report.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "sfsdp/ir/index.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/analysis/param_reads.h"

namespace sfsdp::sim::html_report_test {
namespace {

cost::Machine machine() {
  cost::Machine m;
  m.peak_bf16 = m.peak_f32 = 1e3;
  m.memory_bandwidth = 1e9;
  m.devices_per_node = 8;
  m.node = {1e3, 0, 0};
  m.network = {1e3, 0, 0};
  return m;
}

// Two units of one weight each; the second is gathered under the first one's products.
std::string step_of(int products) {
  std::string text = R"(
graph mesh [dp_shard=2] view local
  %a = param members=[a.w] name=a.flat unit=a : f32[32/dp_shard, 64]
  %b = param members=[b.w] name=b.flat unit=b : f32[32/dp_shard, 64]
  %x = input name=x : f32[64, 64] own(dp_shard)
fwd:
  %as = all_gather.start %a axis=dp_shard dim=0 : async f32[64, 64] at a
  %bs = all_gather.start %b axis=dp_shard dim=0 : async f32[64, 64] at b
  %aw = wait %as : f32[64, 64] at a
  %h0 = aten.mm %x, %aw : f32[64, 64] at a
)";
  for (int i = 1; i < products; ++i)
    text += "  %h" + std::to_string(i) + " = aten.mm %h" + std::to_string(i - 1) + ", %aw : f32[64, 64] at a\n";
  return text + "  %bw = wait %bs : f32[64, 64] at b\n  %y = aten.mm %h" + std::to_string(products - 1) +
         R"(, %bw : f32[64, 64] at b
bwd:
  %g = aten.mm %y, %bw bwd_of=%y : f32[64, 64] at b
  %gs = reduce_scatter.start %g axis=dp_shard dim=0 : async f32[32, 64] at b
  %gw = wait %gs : f32[32, 64] at b
opt:
  %b.grad = gradient %gw param=b.flat : f32[32, 64] at b
  %n = sum_squares [%b.grad] axis=dp_shard numels=[2048] replicated=[false] : f64[1]
  %n.all = all_reduce %n axis=dp_shard : f64[1]
  return %b.grad, %n.all
)";
}

nlohmann::json data_of(const std::string& page) {
  const size_t begin = page.find("const data =\n") + 13, end = page.find(";\nconst $ =");
  REQUIRE(begin < end);
  return nlohmann::json::parse(page.substr(begin, end - begin));
}

TEST_CASE("bucket table: a row per collective, with its unit, how far it is ahead, and why it is one") {
  ir::Graph graph = ir::parse_or_throw(step_of(3));
  graph.micro_batches = 2;
  const Simulation s = simulate(graph, machine());
  const auto rows = bucket_table(graph, s, {{"a", "matches a"}});
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].unit == "a");
  CHECK(rows[0].reason == "matches a");
  CHECK(rows[0].distance == 0);
  CHECK(rows[0].exposed > 0);
  CHECK(rows[1].unit == "b");
  CHECK(rows[1].reason == "unit b");
  CHECK(rows[1].distance == 1);  // a's products
  CHECK(rows[1].runs == 2);
  CHECK(rows[1].bytes == 64 * 64 * 4);
  CHECK(rows[1].seconds == doctest::Approx(2 * 64 * 64 * 4 / 2 / 1e3));
  CHECK(rows[2].kind == "reduce_scatter");
  CHECK(rows[2].unit == "b");
  CHECK(rows[2].communicator == "dp_shard");
  CHECK(rows[3].unit == "");
  CHECK(rows[3].runs == 1);
  CHECK(rows[3].section == "opt");
  double exposed = 0;
  for (const BucketRow& row : rows) exposed += row.exposed;
  CHECK(exposed == doctest::Approx(s.exposed()));
}

TEST_CASE("bucket table: parameters stored one by one, copied into a bucket or not") {
  const ir::Graph graph = ir::parse_or_throw(R"(graph mesh [dp_shard=2] view local
  %a = param name=a unit=u : f32[32/dp_shard, 64]
  %b = param name=b unit=u : f32[32/dp_shard, 64]
  %c = param name=c unit=v : f32[32/dp_shard, 64]
fwd:
  %p = pack [%a, %b] offsets=[0, 2048] : f32[4096]
  %u = all_gather %p axis=dp_shard dim=0 : f32[8192]
  %b.full = unpack %u offset=2048 ranks=2 : f32[64, 64]
  %v = all_gather %c axis=dp_shard dim=0 : f32[64, 64]
  %y = aten.mm %b.full, %v : f32[64, 64]
  return %y
)");
  const auto rows = bucket_table(graph, simulate(graph, machine(), {}), {{"u", "matches u"}});
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].unit == "u");
  CHECK(rows[0].reason == "matches u; stored one by one, copied into one buffer");
  CHECK(rows[1].unit == "c");
  CHECK(rows[1].reason == "one parameter, no bucket");
}

TEST_CASE("bucket table: a reduction is of its own unit's gradient, also where that is summed beside others") {
  const ir::Graph graph = ir::parse_or_throw(R"(graph mesh [dp_shard=2, tp=2] view local
  %a = param members=[a.w] name=a.flat numels=[128] offsets=[0] size=128 unit=a : f32[64/dp_shard]
  %b = param members=[b.w] name=b.flat numels=[128] offsets=[0] size=128 unit=b : f32[64/dp_shard]
  %da = input name=da : f32[128] own(dp_shard)
bwd:
  %p = as_summand %da axis=tp : f32[128] sum(tp)
  %n = aten.neg %p : f32[128] sum(tp)
  %a.rs = reduce_scatter %p axis=dp_shard dim=0 : f32[64] sum(tp)
  %b.rs = reduce_scatter %n axis=dp_shard dim=0 : f32[64] sum(tp)
clip:
  %packed = pack [%a.rs, %b.rs] offsets=[0, 64] : f32[128] sum(tp)
  %all = all_reduce %packed axis=tp : f32[128]
  %a.ar = view %all offset=0 : f32[64]
  %a.grad = gradient %a.ar param=a.flat : f32[64]
  %b.ar = view %all offset=64 : f32[64]
  %b.grad = gradient %b.ar param=b.flat : f32[64]
  return %a.grad, %b.grad
)");
  const auto rows = bucket_table(graph, simulate(graph, machine(), {}), {});
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].unit == "a");
  CHECK(rows[1].unit == "b");
  CHECK(rows[2].unit.empty());
  CHECK(rows[2].reason == "gradients of 2 buckets, small and of what all ranks have, at once");
  const ir::Index index(graph);
  const passes::ParamNames params = passes::params_by_name(graph);
  CHECK(passes::param_of_gradient(params, index, graph.find_value("b.rs")) == graph.find_value("b")->producer());
  CHECK(passes::param_of_gradient(params, index, graph.find_value("all")) == nullptr);
}

TEST_CASE("html report: what it draws adds up to the simulation, and no name ends its script") {
  const ir::Graph graph = ir::parse_or_throw(step_of(300));
  const plan::MemoryPlan plan = plan::plan_memory(graph);
  const Simulation s = simulate(graph, machine(), {});
  const auto memory = memory_over_time(graph, plan, s);
  HtmlReport report;
  report.title = "a</script><b>";
  report.limit_bytes = 1 << 20;
  report.state_bytes = plan.state_bytes;
  report.buckets = bucket_table(graph, s, {});
  const std::string page = html_report(report, s, memory);
  CHECK(page.find("a</script>") == std::string::npos);
  const auto whole = data_of(page);
  CHECK(whole["title"] == report.title);
  CHECK(whole["memoryName"] == "Memory, GiB");
  CHECK(whole["lanes"] == nlohmann::json::parse(R"(["compute", "dp_shard"])"));
  CHECK(whole["buckets"].size() == 4);
  std::set<double> times;  // of one time the fullest sample
  for (const MemorySample& m : memory) times.insert(m.at);
  CHECK(whole["memory"].size() == times.size());

  const auto thin = data_of(html_report(report, s, memory, {.events = 40, .samples = 20}));
  CHECK(whole["blocks"].size() > 300);
  CHECK(thin["blocks"].size() <= 40);
  CHECK(thin["memory"].size() <= 21);
  const auto sum = [](const nlohmann::json& data, size_t field, const std::string& what) {
    double total = 0;
    for (const auto& b : data["blocks"])
      if (data["strings"][b[1].get<size_t>()] == what) total += b[field].get<double>();
    return total;
  };
  for (const auto& data : {whole, thin}) {
    CHECK(sum(data, 6, "forward") + sum(data, 6, "backward") == doctest::Approx(s.compute_seconds * 1e3).epsilon(0.01));
    CHECK(sum(data, 8, "forward") == 301);  // products
    CHECK(sum(data, 5, "wait") == doctest::Approx(s.exposed() * 1e3).epsilon(0.01));
    CHECK(sum(data, 7, "all_gather") == 2 * 64 * 64 * 4);
  }
  const auto peak = [](const nlohmann::json& data) {
    int64_t most = 0;
    for (const auto& m : data["memory"]) {
      int64_t total = 0;
      for (size_t k = 1; k < m.size(); ++k) total += m[k].get<int64_t>();
      most = std::max(most, total);
    }
    return most;
  };
  CHECK(peak(whole) == plan.live_bytes);
  CHECK(peak(thin) == plan.live_bytes);
}

}  // namespace
}  // namespace sfsdp::sim::html_report_test

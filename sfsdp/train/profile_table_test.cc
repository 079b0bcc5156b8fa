// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/profile_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::train::profile_table_test {
namespace {

// One gathered weight in two linear maps, a softmax, its gradient summed over micro-batches, clipping and an update of sorts.
const char* const kStep = R"(graph mesh [dp_shard=2] view local
  %w = param name=w : f32[500/dp_shard, 1000] at layers.0.w
  %m = state name=m : f32[500/dp_shard, 1000] at layers.0.w
  %x = input name=x : f32[500, 1000] own(dp_shard)
fwd:
  %all = all_gather %w axis=dp_shard dim=0 : f32[1000, 1000] at layers.0.w
  %y = linear %x, %all kernel=0 : f32[500, 1000] at layers.0
  %z = linear %y, %all kernel=1 : f32[500, 1000] at layers.1
  %s = aten._softmax %z dim=-1 half_to_float=false kernel=2 : f32[500, 1000] at layers.1
  %v = aten.view %s size=[500000] : f32[500000]
bwd:
  %d = linear_dw %s, %x kernel=3 : f32[1000, 1000] at layers.0.w
  %r = reduce_scatter %d axis=dp_shard dim=0 : f32[500/dp_shard, 1000] at layers.0.w
  %a = accumulate %r kernel=4 : f32[500/dp_shard, 1000] at layers.0.w
clip:
  %n = aten.mul.Tensor %a, %a kernel=5 : f32[500/dp_shard, 1000] at layers.0.w
opt:
  %u = aten.sub.Tensor %w, %n kernel=6 : f32[500/dp_shard, 1000] at layers.0.w
  return %u
)";

// Microseconds that each op takes; the view, of which nothing is to be seen, 10.
const std::map<std::string, double> kTimes = {{"all", 1000}, {"y", 10000}, {"z", 10000}, {"s", 2000}, {"v", 10},
                                              {"d", 5000},   {"r", 2000},  {"a", 600},   {"n", 1000}, {"u", 3000}};

void run(StepRuns& runs, const ir::Graph& graph, int64_t step, int micro_batches) {
  double now = 0;
  runs.begin(step, now);
  for (int m = 0; m < micro_batches; ++m)
    for (const auto& op : graph.ops()) {
      const bool once = op->section == ir::Section::Clip || op->section == ir::Section::Opt;
      const auto found = kTimes.find(op->result()->name());
      if (found != kTimes.end() && (!once || m + 1 == micro_batches)) runs.ran(*op, now += found->second);
    }
  runs.end(now + 390);
}

TEST_CASE("profile: by kind what takes the time, its rate, and how much of the machine's that is") {
  const ir::Graph graph = ir::parse_or_throw(kStep);
  StepRuns runs(graph);
  run(runs, graph, 10, 1);
  ProfileTable table;
  CHECK(table.empty());
  table.add(runs);
  // 35 ms. A linear map: 2 x 500 x 1000 x 1000 flops in 10 ms are 100 GF/s; three of them in 25 ms are 120.
  // Softmax: 2 MB read and 2 MB written in 2 ms. The sum: 2 MB read and written in 0.6 ms, as there is nothing yet to add to.
  // Clip reads a sum of 2 MB and writes as much in 1 ms, the update reads two and writes one in 3 ms: 10 MB in 4 ms.
  // The gather reads and writes 4 MB in 1 ms, the reduction reads 4 and writes 2 in 2 ms: 14 MB in 3 ms.
  CHECK(table.text(1, {.flops = 150e9, .bytes = 10e9}) == R"(Profile of rank 1, the mean of step 10: 35.000 ms
                         ms a step    share    runs          rate  of the machine's
products                    25.000   71.4 %       3    120.0 GF/s              80 %
rows                         2.000    5.7 %       1      2.0 GB/s              20 %
elements                     0.600    1.7 %       1      6.7 GB/s              67 %
optimizer                    4.000   11.4 %       2      2.5 GB/s              25 %
communication, exposed       3.000    8.6 %       2      4.7 GB/s              47 %
communication, hidden        0.000    0.0 %
rest                         0.400    1.1 %
A step that is profiled runs its lanes one after the other: nothing hides communication.
The machine's: 150.0 GF/s in products, 10.0 GB/s read and written in copies, of this rank while all ranks measured it.
 ms a step    share    runs          rate  of the machine's  what takes the longest, of its kind
    20.000   57.1 %       2    100.0 GF/s              67 %  linear 500 x 1000 x 1000 of layers.*
     5.000   14.3 %       1    200.0 GF/s             133 %  linear_dw 1000 x 1000 x 500 of layers.*.w
     3.000    8.6 %       1      2.0 GB/s              20 %  aten.sub.Tensor of layers.*.w
     2.000    5.7 %       1      3.0 GB/s              30 %  reduce_scatter over dp_shard of layers.*.w
     2.000    5.7 %       1      2.0 GB/s              20 %  aten._softmax of layers.*
     1.000    2.9 %       1      8.0 GB/s              80 %  all_gather over dp_shard of layers.*.w
     1.000    2.9 %       1      4.0 GB/s              40 %  aten.mul.Tensor of layers.*.w
     0.600    1.7 %       1      6.7 GB/s              67 %  accumulate of layers.*.w
)");
}

TEST_CASE(
    "profile: several steps are their mean, later micro-batches read the sum, and nobody may have measured the "
    "machine") {
  const ir::Graph graph = ir::parse_or_throw(kStep);
  ProfileTable table;
  for (const int64_t step : {10, 20}) {
    StepRuns runs(graph);
    run(runs, graph, step, 2);
    table.add(runs);
  }
  const std::string text = table.text(0, {});
  CAPTURE(text);
  CHECK(text.find("Profile of rank 0, the mean of steps 10, 20: 65.610 ms\n") == 0);
  CHECK(text.find("products                    50.000   76.2 %       6    120.0 GF/s\n") != std::string::npos);
  // 4 MB in the first micro-batch and 6 in the second, in 1.2 ms.
  CHECK(text.find("elements                     1.200    1.8 %       2      8.3 GB/s\n") != std::string::npos);
  CHECK(text.find("The machine's") == std::string::npos);
}

TEST_CASE("profile: one rank has no communication, and ten kernels are shown") {
  std::string graph_text = "graph mesh [] view local\n  %x0 = input name=x : f32[2]\nfwd:\n";
  for (int i = 1; i <= 12; ++i)
    graph_text += concat("  %x", i, " = aten.cat [%x", i - 1, ", %x0] dim=0 : f32[", 2 * i + 2, "] at m\n");
  const ir::Graph graph = ir::parse_or_throw(graph_text + "  return %x12\n");
  StepRuns runs(graph);
  runs.begin(1, 0);
  for (size_t i = 1; i < graph.ops().size(); ++i) runs.ran(*graph.ops()[i], static_cast<double>(i));
  runs.end(12);
  ProfileTable table;
  table.add(runs);
  const std::string text = table.text(0, {});
  CAPTURE(text);
  CHECK(text.find("communication") == std::string::npos);
  const size_t head = text.find("what takes the longest");
  REQUIRE(head != std::string::npos);
  CHECK(std::count(text.begin() + static_cast<std::ptrdiff_t>(head), text.end(), '\n') == 11);
}

}  // namespace
}  // namespace sfsdp::train::profile_table_test

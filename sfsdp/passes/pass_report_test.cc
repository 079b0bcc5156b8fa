// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/pass_report.h"

#include <doctest/doctest.h>

#include <vector>

#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/tune/simulated.h"

namespace sfsdp::passes::pass_report_test {
namespace {

ir::Graph two_gathers() {
  return ir::parse_or_throw(testing::dedent(R"(
    graph mesh [a=2] view local
      %w = param name=w : f32[262144/a]
    fwd:
      %1 = all_gather %w axis=a dim=0 : f32[524288]
      %2 = all_gather %w axis=a dim=0 : f32[524288]
      %y = aten.add.Tensor %1, %2 : f32[524288]
      return %y
  )"));
}

TEST_CASE("the table has a line per pass: what there was, what there is, what the pass counted") {
  ir::Graph graph = two_gathers();
  const auto reports = run_passes(graph, parse_passes("merge_duplicates, dead_code"));
  CHECK(table(reports) ==
        "pass              ops     collectives  their MiB   what it did\n"
        "merge_duplicates  4 -> 3  2 -> 1       4.0 -> 2.0  bytes_saved 2,097,152, collectives_merged 1, ops_merged 1\n"
        "dead_code         3       1            2.0         nothing to do\n");
}

TEST_CASE("on a machine reports say what the step takes before and after each pass") {
  ir::Graph graph = two_gathers();
  const cost::Machine machine = cost::load_machine(testing::source_dir() + "/machines/dgx_h100.toml");
  const auto measure = [&](const ir::Graph& g) { return tune::simulated(g, machine, 1); };
  const StepFigures first = measure(graph);
  const auto reports = run_passes(graph, parse_passes("merge_duplicates, dead_code"), {.measure = measure});
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].before->seconds == first.seconds);
  CHECK(reports[0].after->exposed == doctest::Approx(first.exposed / 2));  // one gather is left of two
  CHECK(reports[0].before->peak_bytes - reports[0].after->peak_bytes == 524288 * 4);
  CHECK(reports[1].before->seconds == reports[0].after->seconds);
  CHECK(reports[1].after->seconds == measure(graph).seconds);
  CHECK(table(reports).find("step ms") != std::string::npos);
  CHECK(to_string(reports[0]).find("peak GiB 0.08") != std::string::npos);
}

}  // namespace
}  // namespace sfsdp::passes::pass_report_test

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/pass_report.h"

#include <doctest/doctest.h>

#include <vector>

#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes {
namespace {

TEST_CASE("the table has a line per pass: what there was, what there is, what the pass counted") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(R"(
    graph mesh [a=2] view local
      %w = param name=w : f32[262144/a]
    fwd:
      %1 = all_gather %w axis=a dim=0 : f32[524288]
      %2 = all_gather %w axis=a dim=0 : f32[524288]
      %y = aten.add.Tensor %1, %2 : f32[524288]
      return %y
  )"));
  const auto reports = run_passes(graph, parse_passes("merge_duplicates, dead_code"));
  CHECK(table(reports) ==
        "pass              ops     collectives  their MiB   what it did\n"
        "merge_duplicates  4 -> 3  2 -> 1       4.0 -> 2.0  bytes_saved 2,097,152, collectives_merged 1, ops_merged 1\n"
        "dead_code         3       1            2.0         nothing to do\n");
}

}  // namespace
}  // namespace sfsdp::passes

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/cut_over_tp.h"

#include <doctest/doctest.h>

#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/parallel/partition.h"
#include "sfsdp/parallel/separate_blocks.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::testing {

ir::Graph cut_over_tp(std::string_view text, const TensorParallel& rules, int64_t ranks) {
  ir::Graph graph = ir::parse_or_throw(dedent(text));
  graph.mesh = {{"tp", ranks}};
  graph.view = ir::Graph::View::Local;
  const auto cuts = parallel::separate_blocks(graph, parallel::find_cuts(graph, rules, ranks));
  parallel::partition(graph, {"tp", ranks}, cuts, rules.options);
  for (const ir::Diagnostic& wrong : ir::verify(graph)) FAIL_CHECK(wrong.message, "\n", wrong.detail);
  CHECK(plan::verify_layouts(graph) == "");
  return graph;
}

}  // namespace sfsdp::testing

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/explain_partition.h"

#include <doctest/doctest.h>

#include <sstream>
#include <string>

#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/sentences.h"

namespace sfsdp::tools::explain_partition_test {
namespace {

std::string explained(RotateMethod method, const std::string& machine) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(testing::kSentences));
  step::StepOptions options;
  options.tune.machine = machine;
  std::ostringstream out;
  explain_partition(graph, data_parallel(DeviceMesh({{"cp", 4}}), {}, {}, {.rotate_method = method}), options, out);
  return out.str();
}

TEST_CASE("explain: what attention exchanges over cp, with the times of the alternatives and why one is not legal") {
  const std::string heads =
      "alltoall refused, it has 2 heads of keys and values, of which cp = 4 ranks cannot have equal parts";
  const std::string chosen = explained(RotateMethod::Auto, "dgx_h100");
  CHECK(chosen.find("  allgather, the fastest: allgather 0.") != std::string::npos);
  CHECK(chosen.find(" ms, " + heads + ", ring 0.") != std::string::npos);
  CHECK(explained(RotateMethod::Ring, "dgx_h100").find("  ring, as asked for: allgather 0.") != std::string::npos);
  CHECK(explained(RotateMethod::Auto, "").find("  attention\n") == std::string::npos);
}

}  // namespace
}  // namespace sfsdp::tools::explain_partition_test

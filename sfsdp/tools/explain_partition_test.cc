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

TEST_CASE("explain: of which experts each rank has some, and by which pattern") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(R"(
    graph mesh [] view global
      %w = param name=layers.0.moe.experts.w : f32[4, 4, 4] at layers.0.moe.experts
      %v = param name=layers.1.moe.experts.w : f32[4, 4, 4] at layers.1.moe.experts
      %g = param name=layers.0.moe.gate : f32[8, 4] at layers.0.moe
      %x = input name=x : f32[8, 4]
      %order = input name=order : i64[8]
    fwd:
      %ends = full value=8 : i32[4] at layers.0.moe
      %t = aten.mul.Tensor %x, %g : f32[8, 4] at layers.0.moe
      %rows = aten.index_select %t, %order dim=0 : f32[8, 4] at layers.0.moe
      %y = aten._grouped_mm %rows, %w, %ends, none : f32[8, 4] at layers.0.moe.experts
      %z = aten._grouped_mm %y, %v, %ends, none : f32[8, 4] at layers.1.moe.experts
      %back = aten.index_select %z, %order dim=0 : f32[8, 4] at layers.1.moe
    loss:
      %loss = aten.sum %back : f32[]
      return %loss
  )"));
  std::ostringstream out;
  explain_partition(graph, data_parallel(DeviceMesh({{"ep", 2}})), {}, out);
  CAPTURE(out.str());
  CHECK(out.str().starts_with(
      "Over ep = 2\n  cut\n    layers.*.moe.experts.w  f32[4, 4, 4], dimension 0, experts: *.experts  × 2\n"
      "  made to lie otherwise\n"));
}

}  // namespace
}  // namespace sfsdp::tools::explain_partition_test

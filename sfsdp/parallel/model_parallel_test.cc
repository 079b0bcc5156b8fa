// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/model_parallel.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::parallel::model_parallel_test {
namespace {

// A weight in bfloat16 that a model computes with in float32, as a router does: autograd rounds its gradient to bfloat16.
constexpr const char* kRouter = R"(
  graph mesh [] view global
    %w = param name=gate.weight : bf16[5, 3] at gate
    %x = input name=x : f32[2, 4, 3]
    %g = input name=g : f32[2, 4, 5]
  fwd:
    %wide = aten._to_copy %w dtype=f32 : f32[5, 3] at gate
    %y = linear %x, %wide : f32[2, 4, 5] at gate
  loss:
    %loss = aten.sum %y : f32[]
  bwd:
    %dw = linear_dw %g, %x bwd_of=%y : f32[5, 3] at gate
    %half = aten._to_copy %dw dtype=bf16 bwd_of=%wide : bf16[5, 3] at gate
    %w.grad = gradient %half param=gate.weight : bf16[5, 3]
    return %loss
)";

struct Placed {
  int64_t sums = 0;      // over cp, of backward
  std::string gradient;  // its type
};

Placed placed(ir::DType reduce_dtype) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kRouter));
  DataParallelOptions options;
  options.mixed_precision = {ir::DType::bf16, reduce_dtype};
  apply_model_parallel(graph, data_parallel(DeviceMesh({{"dp_shard", 2}, {"cp", 2}}), options));
  Placed placed;
  for (const auto& op : graph.ops()) {
    if (op->is("all_reduce") && op->section == ir::Section::Bwd) ++placed.sums;
    if (op->is("gradient")) placed.gradient = concat(op->result()->type());
  }
  return placed;
}

TEST_CASE("a gradient that is rounded to half precision is not summed over cp for that where its reduction is wider") {
  const Placed wide = placed(ir::DType::f32);
  CHECK(wide.sums == 0);
  CHECK(wide.gradient == "f32[5, 3] sum(cp)");
}

TEST_CASE("a gradient that is reduced in half precision is summed over cp first, and rounded once") {
  const Placed half = placed(ir::DType::bf16);
  CHECK(half.sums == 1);
  CHECK(half.gradient == "bf16[5, 3] sum(cp)");  // of the first rank alone
}

}  // namespace
}  // namespace sfsdp::parallel::model_parallel_test

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/chunk_loss.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/pipeline.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::chunk_loss_test {
namespace {

using testing::expect_pass;
using testing::expect_unchanged;

// 5 tokens of width 2, 4 classes of which class 3 is ignored; the weight is gathered again for backward.
constexpr const char* kLoss = R"(
    graph mesh [dp_shard=2] view local
      %w = param name=output.weight rows=4 : f32[2/dp_shard, 2] at output
      %h = input name=h : f32[5, 2] own(dp_shard)
      %y = input name=y : i64[5] own(dp_shard)
    fwd:
      %w.full = all_gather %w axis=dp_shard dim=0 : f32[4, 2] at output
      %wt = aten.t %w.full : f32[2, 4]{1, 2} at output
      %logits = aten.mm %h, %wt : f32[5, 4] at output
      %p = aten._log_softmax %logits dim=1 half_to_float=false : f32[5, 4] at output
      %loss, %n = aten.nll_loss_forward %p, %y, none ignore_index=3 reduction=1 : f32[], f32[] at output
    bwd:
      %seed = full value=0.5 : f32[]
      %gp = aten.nll_loss_backward %seed, %p, %y, none, %n ignore_index=3 reduction=1 : f32[5, 4] at output
      %gx = aten._log_softmax_backward_data %gp, %p dim=1 input_dtype=f32 : f32[5, 4] at output
      %gt = aten.t %gx : f32[4, 5]{1, 4} at output
      %gw = aten.mm %gt, %h : f32[4, 2] at output
      %gw.rs = reduce_scatter %gw axis=dp_shard dim=0 : f32[2, 2] at output
      %w.full_1 = all_gather %w axis=dp_shard dim=0 : f32[4, 2] at output
      %gh = aten.mm %gx, %w.full_1 : f32[5, 2] at output
      return %loss, %gw.rs, %gh
  )";

TEST_CASE(
    "chunk_loss: logits for 3, then 2 tokens; the divisor of the mean comes first, weight gradients are added up") {
  expect_pass("chunk_loss chunks=2, dead_code", kLoss, R"(
    graph mesh [dp_shard=2] view local
      %w = param name=output.weight rows=4 : f32[2/dp_shard, 2] at output
      %h = input name=h : f32[5, 2] own(dp_shard)
      %y = input name=y : i64[5] own(dp_shard)
    bwd:
      %seed = full value=0.5 : f32[]
      %w.full_1 = all_gather %w axis=dp_shard dim=0 : f32[4, 2] at output
      %0 = aten.t %w.full_1 : f32[2, 4]{1, 2} at output
      %1 = aten.ne.Scalar %y other=3 : b1[5] own(dp_shard) at output
      %2 = cast %1 : f32[5] own(dp_shard) at output
      %3 = aten.sum %2 : f32[] at output
      %4 = narrow %h dim=0 length=3 start=0 : f32[3, 2] own(dp_shard) at output
      %5 = narrow %y dim=0 length=3 start=0 : i64[3] own(dp_shard) at output
      %6 = aten.mm %4, %0 : f32[3, 4] at output
      %7 = aten._log_softmax %6 dim=1 half_to_float=false : f32[3, 4] at output
      %8, %9 = aten.nll_loss_forward %7, %5, none ignore_index=3 reduction=2 : f32[], f32[] at output
      %10 = aten.nll_loss_backward %seed, %7, %5, none, %3 ignore_index=3 reduction=1 : f32[3, 4] at output
      %11 = aten._log_softmax_backward_data %10, %7 dim=1 input_dtype=f32 : f32[3, 4] at output
      %12 = aten.mm %11, %w.full_1 : f32[3, 2] at output
      %13 = aten.t %11 : f32[4, 3]{1, 4} at output
      %14 = aten.mm %13, %4 : f32[4, 2] at output
      %15 = narrow %h dim=0 length=2 start=3 : f32[2, 2] own(dp_shard) at output
      %16 = narrow %y dim=0 length=2 start=3 : i64[2] own(dp_shard) at output
      %17 = aten.mm %15, %0 : f32[2, 4] at output
      %18 = aten._log_softmax %17 dim=1 half_to_float=false : f32[2, 4] at output
      %19, %20 = aten.nll_loss_forward %18, %16, none ignore_index=3 reduction=2 : f32[], f32[] at output
      %21 = aten.add.Tensor %8, %19 : f32[] at output
      %22 = aten.nll_loss_backward %seed, %18, %16, none, %3 ignore_index=3 reduction=1 : f32[2, 4] at output
      %23 = aten._log_softmax_backward_data %22, %18 dim=1 input_dtype=f32 : f32[2, 4] at output
      %24 = aten.mm %23, %w.full_1 : f32[2, 2] at output
      %25 = aten.t %23 : f32[4, 2]{1, 4} at output
      %26 = aten.mm %25, %15 : f32[4, 2] at output
      %27 = add_into %14, %26 donates=[0] : f32[4, 2] at output
      %28 = div %21, %3 : f32[] at output
      %29 = aten.cat [%12, %24] : f32[5, 2] at output
      %gw.rs = reduce_scatter %27 axis=dp_shard dim=0 : f32[2, 2] at output
      return %28, %gw.rs, %29
  )");
}

// As mixed precision has it: logits are widened after the product, their gradient is narrowed again.
TEST_CASE("chunk_loss: weight gradients in bf16 are added up in f32, where their reduction wants them") {
  const std::string text = testing::dedent(R"(
    graph mesh [dp_shard=1] view local
      %w = param name=output.weight : bf16[4, 2]
      %h = input name=h : bf16[6, 2]
      %y = input name=y : i64[6]
    fwd:
      %wt = aten.t %w : bf16[2, 4]{1, 2}
      %logits = aten.mm %h, %wt : bf16[6, 4]
      %x = cast %logits : f32[6, 4]
      %p = aten._log_softmax %x dim=1 half_to_float=false : f32[6, 4]
      %loss, %n = aten.nll_loss_forward %p, %y, none ignore_index=-100 reduction=2 : f32[], f32[]
    bwd:
      %seed = full value=1.0 : f32[]
      %gp = aten.nll_loss_backward %seed, %p, %y, none, %n ignore_index=-100 reduction=2 : f32[6, 4]
      %gx = aten._log_softmax_backward_data %gp, %p dim=1 input_dtype=f32 : f32[6, 4]
      %gl = cast %gx : bf16[6, 4]
      %gt = aten.t %gl : bf16[4, 6]{1, 4}
      %gw = aten.mm %gt, %h : bf16[4, 2]
      %wide = cast %gw : f32[4, 2]
      %gh = aten.mm %gl, %w : bf16[6, 2]
      return %loss, %wide, %gh
  )");
  const ir::Graph before = ir::parse_or_throw(text);
  ir::Graph graph = before.clone();
  const auto reports = run_passes(graph, parse_passes("chunk_loss chunks=3"));
  CHECK(reports[0].metrics.get("losses") == 1);
  CHECK(testing::check_same_meaning(before, graph, testing::Agreement::UpToOrderOfSums) == "");
  CHECK(graph.find_value("wide") == nullptr);
  CHECK(graph.outputs[1]->producer()->is("add_into"));
  CHECK(graph.outputs[1]->type().dtype == ir::DType::f32);
  for (const auto& op : graph.ops())
    for (const auto& result : op->results()) {
      CAPTURE(result->name());
      const auto shape = result->type().shape();
      CHECK_FALSE((shape == std::vector<int64_t>{6, 4}));  // no logits of all tokens
    }
}

TEST_CASE("chunk_loss: its post-condition finds rows that are left out, read twice or too many at once") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kLoss));
  run_passes(graph, parse_passes("chunk_loss chunks=2"));
  const ir::Value *hidden = graph.find_value("h"), *weight_t = graph.find_value("0");
  CHECK_NOTHROW(expect_chunked(graph, hidden, weight_t, 3));
  CHECK_THROWS_WITH_AS(expect_chunked(graph, hidden, weight_t, 2), doctest::Contains("at most 2"), InternalError);
  const auto refuses = [&](const char* part, const char* attribute, int64_t value, const char* what) {
    ir::Attr& attr = graph.find_value(part)->producer()->attrs.at(attribute);
    const ir::Attr good = std::exchange(attr, value);
    CHECK_THROWS_WITH_AS(expect_chunked(graph, hidden, weight_t, 3), doctest::Contains(what), InternalError);
    attr = good;
  };
  refuses("15", "start", 2, "chunk_loss: a chunk of 2 rows begins at row 2; expected row 3");
  refuses("15", "length", 1, "chunk_loss: the chunks have 4 rows of f32[5, 2]");
  refuses("4", "start", 1, "expected row 0");
}

TEST_CASE("chunk_loss: what it cannot chunk stays") {
  expect_unchanged("chunk_loss chunks=1", kLoss);
  expect_unchanged("chunk_loss chunks=6", kLoss);  // more than tokens
  const auto without = [](const std::string& from, const std::string& to) {
    std::string text = kLoss;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  expect_unchanged("chunk_loss chunks=2", without("return %loss", "return %logits, %loss"));  // read by others
  expect_unchanged("chunk_loss chunks=2", without("return %loss", "return %n, %loss"));
  expect_unchanged("chunk_loss chunks=2", without("%seed = full value=0.5", "%seed = aten.neg %loss"));
  expect_unchanged("chunk_loss chunks=2", without("%seed, %p, %y", "%p, %p, %y"));
  expect_unchanged("chunk_loss chunks=2",
                   without("%p = aten._log_softmax %logits dim=1", "%p = aten._log_softmax %logits dim=0"));
  expect_unchanged("chunk_loss chunks=2", without("data %gp, %p dim=1", "data %gp, %p dim=0"));
  expect_unchanged("chunk_loss chunks=2",
                   without("    bwd:\n", "      %twice = aten.add.Tensor %loss, %loss : f32[]\n    bwd:\n"));
}

TEST_CASE("chunk_loss: a step that asks for chunks and has no loss to cut is refused, an evaluation is not") {
  const PipelineOptions options{.loss_chunks = 2, .flat = false};
  std::optional<plan::BucketLayouts> layout;
  ir::Graph step = ir::parse_or_throw(testing::dedent(R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[4, 2]
    fwd:
      %loss = aten.sum %x : f32[]
    bwd:
      %g = aten.neg %x : f32[4, 2]
      return %loss, %g
  )"));
  CHECK_THROWS_WITH_AS(run_pipeline(step, options, layout), doctest::Contains("expected a linear layer without bias"),
                       UserError);
  ir::Graph evaluation = ir::parse_or_throw(testing::dedent(R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[4, 2]
    fwd:
      %loss = aten.sum %x : f32[]
      return %loss
  )"));
  CHECK_NOTHROW(run_pipeline(evaluation, options, layout));
}

}  // namespace
}  // namespace sfsdp::passes::chunk_loss_test

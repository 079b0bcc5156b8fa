// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/canonical/canonicalise.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::canonicalise_test {
namespace {

using testing::expect_pass;
using testing::expect_unchanged;

TEST_CASE("canonicalise: linear over the last dimension, its gradients, through whatever views") {
  expect_pass("canonicalise", R"(
    graph mesh [] view local
      %w = param name=w : f32[5, 4] at fc
      %x = input name=x : f32[2, 3, 4]
      %g = input name=g : f32[2, 3, 5]
    fwd:
      %wt = aten.t %w : f32[4, 5]{1, 4} at fc
      %x2 = aten.view %x size=[6, 4] : f32[6, 4] at fc
      %y2 = aten.mm %x2, %wt : f32[6, 5] at fc
      %y = aten._unsafe_view %y2 size=[2, 3, 5] : f32[2, 3, 5] at fc
      %z = aten.mul.Tensor %y, %g : f32[2, 3, 5]
    bwd:
      %g2 = aten.view %g size=[6, 5] bwd_of=%y : f32[6, 5] at fc
      %gt = aten.t %g2 bwd_of=%y2 : f32[5, 6]{1, 5} at fc
      %dw = aten.mm %gt, %x2 bwd_of=%y2 : f32[5, 4] at fc
      %dx = aten.mm %g2, %w bwd_of=%y2 : f32[6, 4] at fc
      return %z, %dw, %dx
  )",
              R"(
    graph mesh [] view local
      %w = param name=w : f32[5, 4] at fc
      %x = input name=x : f32[2, 3, 4]
      %g = input name=g : f32[2, 3, 5]
    fwd:
      %y2 = linear %x, %w : f32[2, 3, 5] at fc
      %y2.rows = aten.view %y2 size=[6, 5] : f32[6, 5] at fc
      %y = aten._unsafe_view %y2.rows size=[2, 3, 5] : f32[2, 3, 5] at fc
      %z = aten.mul.Tensor %y, %g : f32[2, 3, 5]
    bwd:
      %dw = linear_dw %g, %x bwd_of=%y2 : f32[5, 4] at fc
      %dx = linear_dx %g, %w bwd_of=%y2 : f32[2, 3, 4] at fc
      %dx.rows = aten.view %dx size=[6, 4] : f32[6, 4] at fc
      return %z, %dw, %dx.rows
  )");
}

TEST_CASE("canonicalise: a captured graph returns its gradients too, before data parallelism has read them") {
  expect_pass("canonicalise", R"(
    graph mesh [] view local
      %w = param name=w : f32[5, 4] at fc
      %x = input name=x : f32[6, 4]
      %g = input name=g : f32[6, 5]
    fwd:
      %wt = aten.t %w : f32[4, 5]{1, 4} at fc
      %y = aten.mm %x, %wt : f32[6, 5] at fc
    bwd:
      %gt = aten.t %g bwd_of=%y : f32[5, 6]{1, 5} at fc
      %dw = aten.mm %gt, %x bwd_of=%y : f32[5, 4] at fc
      %w.grad = gradient %dw param=w : f32[5, 4] at fc
      return %y
  )",
              R"(
    graph mesh [] view local
      %w = param name=w : f32[5, 4] at fc
      %x = input name=x : f32[6, 4]
      %g = input name=g : f32[6, 5]
    fwd:
      %y = linear %x, %w : f32[6, 5] at fc
    bwd:
      %dw = linear_dw %g, %x bwd_of=%y : f32[5, 4] at fc
      %w.grad = gradient %dw param=w : f32[5, 4] at fc
      return %y
  )");
}

// torch::rms_norm in f32 and what autograd makes of it; %res is another part of the gradient of %x.
constexpr const char* kNorm = R"(
    graph mesh [] view local
      %w = param name=w : f32[4] at norm
      %x = input name=x : f32[2, 3, 4]
      %dy = input name=dy : f32[2, 3, 4]
      %res = input name=res : f32[2, 3, 4]
    fwd:
      %sq = aten.pow.Tensor_Scalar %x exponent=2 : f32[2, 3, 4] at norm
      %mean = aten.mean.dim %sq dim=[-1] keepdim=true : f32[2, 3, 1] at norm
      %eps = aten.add.Scalar %mean other=1e-05 : f32[2, 3, 1] at norm
      %rstd = aten.rsqrt %eps : f32[2, 3, 1] at norm
      %n = aten.mul.Tensor %x, %rstd : f32[2, 3, 4] at norm
      %y = aten.mul.Tensor %w, %n : f32[2, 3, 4] at norm
    bwd:
      %gn = aten.mul.Tensor %dy, %n bwd_of=%y : f32[2, 3, 4] at norm
      %gw = aten.mul.Tensor %dy, %w bwd_of=%y : f32[2, 3, 4] at norm
      %s = aten.sum.dim_IntList %gn dim=[0, 1] keepdim=true bwd_of=%y : f32[1, 1, 4] at norm
      %dw = aten.view %s size=[4] bwd_of=%y : f32[4] at norm
      %t = aten.mul.Tensor %gw, %x bwd_of=%n : f32[2, 3, 4] at norm
      %a = aten.mul.Tensor %gw, %rstd bwd_of=%n : f32[2, 3, 4] at norm
      %tr = aten.sum.dim_IntList %t dim=[2] keepdim=true bwd_of=%n : f32[2, 3, 1] at norm
      %first = aten.add.Tensor %res, %a : f32[2, 3, 4] at norm
      %cube = aten.pow.Tensor_Scalar %rstd exponent=3 bwd_of=%rstd : f32[2, 3, 1] at norm
      %half = aten.mul.Scalar %tr other=-0.5 bwd_of=%rstd : f32[2, 3, 1] at norm
      %hc = aten.mul.Tensor %half, %cube bwd_of=%rstd : f32[2, 3, 1] at norm
      %e = aten.expand %hc size=[2, 3, 4] bwd_of=%mean : f32[2, 3, 4]{3, 1, 0} at norm
      %d = aten.div.Scalar %e other=4 bwd_of=%mean : f32[2, 3, 4] at norm
      %p = aten.pow.Tensor_Scalar %x exponent=1.0 bwd_of=%sq : f32[2, 3, 4] at norm
      %p2 = aten.mul.Scalar %p other=2.0 bwd_of=%sq : f32[2, 3, 4] at norm
      %b = aten.mul.Tensor %d, %p2 bwd_of=%sq : f32[2, 3, 4] at norm
      %dx = aten.add.Tensor %first, %b : f32[2, 3, 4] at norm
      return %y, %dw, %dx
)";

TEST_CASE("canonicalise: an RMSNorm of ops, with the residual's gradient that autograd adds in between") {
  expect_pass("canonicalise", kNorm, R"(
    graph mesh [] view local
      %w = param name=w : f32[4] at norm
      %x = input name=x : f32[2, 3, 4]
      %dy = input name=dy : f32[2, 3, 4]
      %res = input name=res : f32[2, 3, 4]
    fwd:
      %y, %rstd = rms_norm %x, %w dims=1 eps=1e-05 : f32[2, 3, 4], f32[2, 3, 1] at norm
    bwd:
      %dx, %s = rms_norm_backward %dy, %x, %w, %rstd, %res dims=1 : f32[2, 3, 4], f32[4] at norm
      %s.rows = aten.view %s size=[1, 1, 4] : f32[1, 1, 4] at norm
      %dw = aten.view %s.rows size=[4] bwd_of=%y : f32[4] at norm
      return %y, %dw, %dx
  )");
}

TEST_CASE("decompose: the ops that were there, each made once for forward and backward, as eager does") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kNorm), "test.ir");
  const size_t before = graph.ops().size();
  run_passes(graph, parse_passes("canonicalise, decompose, fold_views, dead_code"));
  CHECK(graph.ops().size() == before);
  expect_pass("decompose", R"(
    graph mesh [] view local
      %w = param name=w : f32[5, 4] at fc
      %x = input name=x : f32[2, 3, 4]
    fwd:
      %y = linear %x, %w : f32[2, 3, 5] at fc
    bwd:
      %dx = linear_dx %y, %w bwd_of=%y : f32[2, 3, 4] at fc
      return %dx
  )",
              R"(
    graph mesh [] view local
      %w = param name=w : f32[5, 4] at fc
      %x = input name=x : f32[2, 3, 4]
    fwd:
      %0 = aten.view %x size=[6, 4] : f32[6, 4] at fc
      %1 = aten.t %w : f32[4, 5]{1, 4} at fc
      %2 = aten.mm %0, %1 : f32[6, 5] at fc
      %y = aten.view %2 size=[2, 3, 5] : f32[2, 3, 5] at fc
    bwd:
      %4 = aten.view %y size=[6, 5] bwd_of=%y : f32[6, 5] at fc
      %5 = aten.mm %4, %w bwd_of=%y : f32[6, 4] at fc
      %dx = aten.view %5 size=[2, 3, 4] bwd_of=%y : f32[2, 3, 4] at fc
      return %dx
  )");
}

// `text` with `from` replaced by `to`, which stands there once.
std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  REQUIRE(text.find(from, at + 1) == std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string metrics_of(const std::string& text) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text), "test.ir");
  const auto reports = run_passes(graph, parse_passes("canonicalise"));
  std::string counts;
  for (const auto& [name, count] : reports[0].metrics.counts())
    if (ir::is_canonical(name) || name == "left_for_other_readers") counts += concat(name, ' ', count, ' ');
  return counts;
}

TEST_CASE("canonicalise: what differs in one attribute or operand is left alone") {
  CHECK(metrics_of(kNorm) == "left_for_other_readers 0 rms_norm 1 rms_norm_backward 1 ");
  // Another backward: forward stays too, as backward reads its inner values.
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"other=-0.5", "other=-0.4"},
           {"%e other=4", "%e other=5"},
           {"%rstd exponent=3", "%rstd exponent=2"},
           {"aten.add.Tensor %first, %b", "aten.add.Tensor %first, %b alpha=2"},
           {"%d = aten.div.Scalar %e", "%d = aten.mul.Scalar %e"}}) {
    CAPTURE(to);
    CHECK(metrics_of(with(kNorm, from, to)) == "left_for_other_readers 1 ");
  }
  expect_unchanged("canonicalise", R"(
    graph mesh [] view local
      %x = input name=x : f32[3, 4]
    fwd:
      %sq = aten.pow.Tensor_Scalar %x exponent=2 : f32[3, 4]
      %mean = aten.mean.dim %sq dim=[0] keepdim=true : f32[1, 4]
      %eps = aten.add.Scalar %mean other=1e-05 : f32[1, 4]
      %rstd = aten.rsqrt %eps : f32[1, 4]
      %y = aten.mul.Tensor %x, %rstd : f32[3, 4]
      return %y
  )");
}

TEST_CASE("canonicalise: an inner value that something else reads keeps the ops, a cast does not") {
  CHECK(metrics_of(with(kNorm, "return %y, %dw, %dx", "return %y, %dw, %dx, %n")) == "left_for_other_readers 2 ");
  CHECK(metrics_of(with(kNorm, "return %y, %dw, %dx", "return %y, %dw, %dx, %rstd")) ==
        "left_for_other_readers 0 rms_norm 1 rms_norm_backward 1 ");
}

TEST_CASE("canonicalise: in half precision a norm is computed in f32, before or after its weight is applied") {
  const char* kHalf = R"(
    graph mesh [] view local
      %w = param name=w : bf16[4]
      %x = input name=x : bf16[3, 4]
    fwd:
      %wide = aten._to_copy %x dtype=f32 : f32[3, 4]
      %sq = aten.pow.Tensor_Scalar %wide exponent=2.0 : f32[3, 4]
      %mean = aten.mean.dim %sq dim=[1] keepdim=true : f32[3, 1]
      %eps = aten.add.Scalar %mean other=1e-06 : f32[3, 1]
      %rstd = aten.rsqrt %eps : f32[3, 1]
      %n = aten.mul.Tensor %wide, %rstd : f32[3, 4]
      LAST
      return %y
  )";
  const auto expected = [](const char* attr) {
    return concat(R"(
    graph mesh [] view local
      %w = param name=w : bf16[4]
      %x = input name=x : bf16[3, 4]
    fwd:
      %y, %rstd = rms_norm %x, %w)",
                  attr, R"( dims=1 eps=1e-06 : bf16[3, 4], f32[3, 1]
      return %y
  )");
  };
  expect_pass("canonicalise", with(kHalf, "LAST", R"(%scaled = aten.mul.Tensor %n, %w : f32[3, 4]
      %y = aten._to_copy %scaled dtype=bf16 layout=0 : bf16[3, 4])"),
              expected(""));
  expect_pass("canonicalise", with(kHalf, "LAST", R"(%low = aten._to_copy %n dtype=bf16 : bf16[3, 4]
      %y = aten.mul.Tensor %w, %low : bf16[3, 4])"),
              expected(" cast_first=true"));
}

TEST_CASE("canonicalise: a gradient that layer_norm_backward is not asked for stays a token") {
  CHECK(metrics_of(R"(
    graph mesh [] view local
      %w = param name=w : f32[4]
      %x = input name=x : f32[3, 4]
      %g = input name=g : f32[3, 4]
    fwd:
      %y, %m, %r = aten.native_layer_norm %x, %w, none eps=1e-05 normalized_shape=[4] : f32[3, 4], f32[3, 1], f32[3, 1]
    bwd:
      %dx, %dw, %db = aten.native_layer_norm_backward %g, %x, %m, %r, %w, none normalized_shape=[4] output_mask=[true, true, false] bwd_of=%y : f32[3, 4], f32[4], token
      return %y, %dx, %dw
  )") == "layer_norm 1 layer_norm_backward 1 left_for_other_readers 0 ");  // and the verifier is content
}

}  // namespace
}  // namespace sfsdp::passes::canonicalise_test

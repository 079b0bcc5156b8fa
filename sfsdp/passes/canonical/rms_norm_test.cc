// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <string>

#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::rms_norm_test {
namespace {

using testing::expect_pass, testing::expect_unchanged;

// A norm of the batch: nobody asks for the gradient of its input.
TEST_CASE("canonicalise: an RMSNorm of which only the weight gets a gradient") {
  expect_pass("canonicalise", R"(
    graph mesh [] view local
      %w = param name=w : f32[4] at norm
      %x = input name=x : f32[3, 4]
      %dy = input name=dy : f32[3, 4]
    fwd:
      %sq = aten.pow.Tensor_Scalar %x exponent=2 : f32[3, 4] at norm
      %mean = aten.mean.dim %sq dim=[-1] keepdim=true : f32[3, 1] at norm
      %eps = aten.add.Scalar %mean other=1e-05 : f32[3, 1] at norm
      %rstd = aten.rsqrt %eps : f32[3, 1] at norm
      %n = aten.mul.Tensor %x, %rstd : f32[3, 4] at norm
      %y = aten.mul.Tensor %w, %n : f32[3, 4] at norm
    bwd:
      %gn = aten.mul.Tensor %dy, %n bwd_of=%y : f32[3, 4] at norm
      %s = aten.sum.dim_IntList %gn dim=[0] keepdim=true bwd_of=%y : f32[1, 4] at norm
      %dw = aten.view %s size=[4] bwd_of=%y : f32[4] at norm
      return %y, %dw
  )",
              R"(
    graph mesh [] view local
      %w = param name=w : f32[4] at norm
      %x = input name=x : f32[3, 4]
      %dy = input name=dy : f32[3, 4]
    fwd:
      %y, %rstd = rms_norm %x, %w dims=1 eps=1e-05 : f32[3, 4], f32[3, 1] at norm
    bwd:
      %s.none, %s = rms_norm_backward %dy, %x, %w, %rstd, none bwd_of=%y dims=1 only=w : token, f32[4] at norm
      %s.rows = aten.view %s size=[1, 4] : f32[1, 4] at norm
      %dw = aten.view %s.rows size=[4] bwd_of=%y : f32[4] at norm
      return %y, %dw
  )");
}

// Heads of queries, [batch, heads, rows, width], lie in memory row by row; rstd does not.
std::string norm_of_heads(const std::string& product) {
  return R"(
    graph mesh [] view local
      %x = input name=x : f32[2, 5, 3, 4]
    fwd:
      %h = aten.transpose.int %x dim0=1 dim1=2 : f32[2, 3, 5, 4]{60, 4, 12, 1} at norm
      %sq = aten.pow.Tensor_Scalar %h exponent=2 : f32[2, 3, 5, 4]{60, 4, 12, 1} at norm
      %mean = aten.mean.dim %sq dim=[-1] keepdim=true : f32[2, 3, 5, 1] at norm
      %eps = aten.add.Scalar %mean other=1e-05 : f32[2, 3, 5, 1] at norm
      %rstd = aten.rsqrt %eps : f32[2, 3, 5, 1] at norm
      %y = aten.mul.Tensor )" +
         product + R"( at norm
      %m = aten.as_strided %y size=[120] stride=[1] : f32[120]
      return %m
  )";
}

TEST_CASE("canonicalise: rstd · x is no rms_norm where x · rstd has another layout") {
  expect_unchanged("canonicalise", norm_of_heads("%rstd, %h : f32[2, 3, 5, 4]"));
  expect_pass("canonicalise", norm_of_heads("%h, %rstd : f32[2, 3, 5, 4]{60, 4, 12, 1}"), R"(
    graph mesh [] view local
      %x = input name=x : f32[2, 5, 3, 4]
    fwd:
      %h = aten.transpose.int %x dim0=1 dim1=2 : f32[2, 3, 5, 4]{60, 4, 12, 1} at norm
      %y, %rstd = rms_norm %h, none dims=1 eps=1e-05 : f32[2, 3, 5, 4]{60, 4, 12, 1}, f32[2, 3, 5, 1] at norm
      %m = aten.as_strided %y size=[120] stride=[1] : f32[120]
      return %m
  )");
}

}  // namespace
}  // namespace sfsdp::passes::rms_norm_test

// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <string>

#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::dropout_test {
namespace {

using testing::expect_pass;

constexpr const char* kDropout = R"(
    graph mesh [] view local
      %x = input name=x : f32[3, 4]
      %g = input name=g : f32[3, 4]
    fwd:
      %e = aten.empty_like %x : f32[3, 4] at drop
      %m = aten.bernoulli.p %e outer=2 p=0.7 stream=1 : f32[3, 4] at drop
      %s = aten.div.Scalar %m other=0.7 : f32[3, 4] at drop
      %y = aten.mul.Tensor %x, %s : f32[3, 4] at USE
    bwd:
      %dx = aten.mul.Tensor %g, %s bwd_of=%y : f32[3, 4] at drop
      return %y, %dxMORE
)";

std::string dropout(const std::string& use, const std::string& more) {
  std::string text = kDropout;
  text.replace(text.find("USE"), 3, use);
  return text.replace(text.find("MORE"), 4, more);
}

TEST_CASE("canonicalise: dropout keeps the state of its counter, not the mask") {
  expect_pass("canonicalise", dropout("drop", ""), R"(
    graph mesh [] view local
      %x = input name=x : f32[3, 4]
      %g = input name=g : f32[3, 4]
    fwd:
      %y, %s.left = dropout %x keep=0.7 outer=2 stream=1 : f32[3, 4], i64[2] at drop
    bwd:
      %dx = dropout_backward %g, %s.left bwd_of=%y keep=0.7 : f32[3, 4] at drop
      return %y, %dx
  )");
}

TEST_CASE("canonicalise: a mask that is drawn in another module, or read by something else, stays") {
  testing::expect_unchanged("canonicalise", dropout("elsewhere", ""));
  testing::expect_unchanged("canonicalise", dropout("drop", ", %s"));
}

TEST_CASE("decompose: dropout draws once, for forward and backward") {
  expect_pass("decompose", R"(
    graph mesh [] view local
      %x = input name=x : f32[3, 4]
      %g = input name=g : f32[3, 4]
    fwd:
      %y, %left = dropout %x keep=0.7 stream=1 : f32[3, 4], i64[2] at drop
    bwd:
      %dx = dropout_backward %g, %left bwd_of=%y keep=0.7 : f32[3, 4] at drop
      return %y, %dx
  )",
              R"(
    graph mesh [] view local
      %x = input name=x : f32[3, 4]
      %g = input name=g : f32[3, 4]
    fwd:
      %0 = aten.empty_like %x : f32[3, 4] at drop
      %1 = aten.bernoulli.p %0 p=0.7 stream=1 : f32[3, 4] at drop
      %left = aten.div.Scalar %1 other=0.7 : f32[3, 4] at drop
      %y = aten.mul.Tensor %x, %left : f32[3, 4] at drop
    bwd:
      %dx = aten.mul.Tensor %g, %left bwd_of=%y : f32[3, 4] at drop
      return %y, %dx
  )");
}

}  // namespace
}  // namespace sfsdp::passes::dropout_test

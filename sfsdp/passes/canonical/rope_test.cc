// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::rope_test {
namespace {

using testing::expect_pass;

// x · cos + rotate_half(x) · sin of Hugging Face's models, with slices, and its gradient.
TEST_CASE("canonicalise: rotary embedding of halves, by rotate_half") {
  expect_pass("canonicalise", R"(
    graph mesh [] view local
      %x = input name=x : f32[3, 4]
      %cos = input name=cos : f32[3, 4]
      %sin = input name=sin : f32[3, 4]
      %g = input name=g : f32[3, 4]
    fwd:
      %direct = aten.mul.Tensor %x, %cos : f32[3, 4]
      %second = aten.slice.Tensor %x dim=-1 start=2 : f32[3, 2]{4, 1}
      %minus = aten.neg %second : f32[3, 2]
      %first = aten.slice.Tensor %x dim=-1 end=2 start=0 : f32[3, 2]{4, 1}
      %rotated = aten.cat [%minus, %first] dim=-1 : f32[3, 4]
      %turned = aten.mul.Tensor %rotated, %sin : f32[3, 4]
      %y = aten.add.Tensor %direct, %turned : f32[3, 4]
    bwd:
      %gc = aten.mul.Tensor %g, %cos bwd_of=%direct : f32[3, 4]
      %gs = aten.mul.Tensor %g, %sin bwd_of=%turned : f32[3, 4]
      %a = aten.slice.Tensor %gs dim=1 end=2 start=0 : f32[3, 2]{4, 1}
      %b = aten.slice.Tensor %gs dim=1 end=4 start=2 : f32[3, 2]{4, 1}
      %pb = aten.slice_backward %b dim=-1 end=2 input_sizes=[3, 4] start=0 step=1 : f32[3, 4]
      %s1 = aten.add.Tensor %gc, %pb : f32[3, 4]
      %na = aten.neg %a : f32[3, 2]
      %pa = aten.slice_backward %na dim=-1 end=9223372036854775807 input_sizes=[3, 4] start=2 step=1 : f32[3, 4]
      %dx = aten.add.Tensor %s1, %pa : f32[3, 4]
      return %y, %dx
  )",
              R"(
    graph mesh [] view local
      %x = input name=x : f32[3, 4]
      %cos = input name=cos : f32[3, 4]
      %sin = input name=sin : f32[3, 4]
      %g = input name=g : f32[3, 4]
    fwd:
      %y = rope %x, %cos, %sin halves=true : f32[3, 4]
    bwd:
      %dx = rope_inverse %g, %cos, %sin halves=true sliced=true : f32[3, 4]
      return %y, %dx
  )");
}

TEST_CASE("canonicalise: rotary embedding of halves that are split, in half precision") {
  expect_pass("canonicalise", R"(
    graph mesh [] view local
      %x = input name=x : bf16[3, 4]
      %cos = input name=cos : f32[3, 2]
      %sin = input name=sin : f32[3, 2]
      %g = input name=g : bf16[3, 4]
    fwd:
      %wide = aten._to_copy %x dtype=f32 : f32[3, 4]
      %a, %b = aten.split.Tensor %wide dim=-1 split_size=2 : f32[3, 2]{4, 1}, f32[3, 2]{4, 1}
      %bs = aten.mul.Tensor %b, %sin : f32[3, 2]
      %ac = aten.mul.Tensor %a, %cos : f32[3, 2]
      %first = aten.sub.Tensor %ac, %bs : f32[3, 2]
      %as = aten.mul.Tensor %a, %sin : f32[3, 2]
      %bc = aten.mul.Tensor %b, %cos : f32[3, 2]
      %second = aten.add.Tensor %bc, %as : f32[3, 2]
      %both = aten.cat [%first, %second] dim=-1 : f32[3, 4]
      %y = aten._to_copy %both dtype=bf16 layout=0 : bf16[3, 4]
    bwd:
      %gw = aten._to_copy %g dtype=f32 layout=0 : f32[3, 4]
      %ga = aten.slice.Tensor %gw dim=1 end=2 start=0 : f32[3, 2]{4, 1}
      %gb = aten.slice.Tensor %gw dim=1 end=4 start=2 : f32[3, 2]{4, 1}
      %1 = aten.mul.Tensor %gb, %cos : f32[3, 2]
      %2 = aten.mul.Tensor %gb, %sin : f32[3, 2]
      %3 = aten.neg %ga : f32[3, 2]
      %4 = aten.mul.Tensor %ga, %cos : f32[3, 2]
      %5 = aten.add.Tensor %2, %4 : f32[3, 2]
      %6 = aten.mul.Tensor %3, %sin : f32[3, 2]
      %7 = aten.add.Tensor %1, %6 : f32[3, 2]
      %8 = aten.cat [%5, %7] dim=1 : f32[3, 4]
      %dx = aten._to_copy %8 dtype=bf16 layout=0 : bf16[3, 4]
      return %y, %dx
  )",
              R"(
    graph mesh [] view local
      %x = input name=x : bf16[3, 4]
      %cos = input name=cos : f32[3, 2]
      %sin = input name=sin : f32[3, 2]
      %g = input name=g : bf16[3, 4]
    fwd:
      %y = rope %x, %cos, %sin halves=true : bf16[3, 4]
    bwd:
      %dx = rope_inverse %g, %cos, %sin halves=true : bf16[3, 4]
      return %y, %dx
  )");
}

TEST_CASE("canonicalise: halves that are turned the other way round, or by another sine, stay") {
  for (const char* turned : {"%x2, %x1", "%n2, %x1"})
    testing::expect_unchanged("canonicalise", concat(R"(
    graph mesh [] view local
      %x = input name=x : f32[3, 4]
      %z = input name=z : f32[3, 4]
      %cos = input name=cos : f32[3, 4]
      %sin = input name=sin : f32[3, 4]
    fwd:
      %direct = aten.mul.Tensor )",
                                                     turned[1] == 'x' ? "%x" : "%z", R"(, %cos : f32[3, 4]
      %x2 = aten.slice.Tensor %x dim=-1 start=2 : f32[3, 2]{4, 1}
      %n2 = aten.neg %x2 : f32[3, 2]
      %x1 = aten.slice.Tensor %x dim=-1 end=2 start=0 : f32[3, 2]{4, 1}
      %rotated = aten.cat [)",
                                                     turned, R"(] dim=-1 : f32[3, 4]
      %turned = aten.mul.Tensor %rotated, %sin : f32[3, 4]
      %y = aten.add.Tensor %direct, %turned : f32[3, 4]
      return %y, %n2
  )"));
}

}  // namespace
}  // namespace sfsdp::passes::rope_test

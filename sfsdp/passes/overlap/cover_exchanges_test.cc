// SPDX-License-Identifier: BSD-3-Clause
// cover_exchanges: what runs while tokens travel to their experts and back.
#include <doctest/doctest.h>

#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::cover_exchanges_test {
namespace {

using testing::expect_pass;
using testing::expect_unchanged;

TEST_CASE("cover_exchanges: shared experts are shared out among the ways there and back; another block's stays") {
  expect_pass("cover_exchanges", R"(
    graph mesh [ep=2] view local
      %w = param box=ep name=w : f32[2/ep, 4, 4] at layers.0.experts.w
      %s = param name=s : f32[4, 4] at layers.0.shared
      %x = input name=x : f32[8, 4]
      %order = input name=order : i64[16]
      %place = input name=place : i64[16]
    fwd:
      %ends = full value=16 : i32[4]
      %t = own_part %x axis=ep dim=0 : f32[4/ep, 4]
      %own = own_ends %ends axis=ep : i32[2/ep] at layers.0.experts
      %rows.start = all_to_all_v.start %t, %order, %ends axis=ep rows=8 to=rows : async f32[16, 4] rows0(ep) at layers.0
      %rows = wait %rows.start : f32[16, 4] rows0(ep) at layers.0
      %y = aten._grouped_mm %rows, %w, %own, none : f32[16, 4] rows0(ep) at layers.0.experts
      %back.start = all_to_all_v.start %y, %place, %ends axis=ep rows=16 to=parts : async f32[8/ep, 4] at layers.0
      %back = wait %back.start : f32[8/ep, 4] at layers.0
      %pairs = view %back : f32[4/ep, 2, 4] at layers.0
      %sum = aten.sum.dim_IntList %pairs dim=[1] : f32[4/ep, 4] at layers.0
      %up = linear %t, %s : f32[4/ep, 4] at layers.0.shared
      %act = aten.silu %up : f32[4/ep, 4] at layers.0.shared
      %down = linear %act, %s : f32[4/ep, 4] at layers.0.shared
      %out = aten.add.Tensor %sum, %down : f32[4/ep, 4] at layers.0
      %next = linear %t, %s : f32[4/ep, 4] at layers.1
      return %out, %next
  )",
              R"(
    graph mesh [ep=2] view local
      %w = param box=ep name=w : f32[2/ep, 4, 4] at layers.0.experts.w
      %s = param name=s : f32[4, 4] at layers.0.shared
      %x = input name=x : f32[8, 4]
      %order = input name=order : i64[16]
      %place = input name=place : i64[16]
    fwd:
      %ends = full value=16 : i32[4]
      %t = own_part %x axis=ep dim=0 : f32[4/ep, 4]
      %own = own_ends %ends axis=ep : i32[2/ep] at layers.0.experts
      %rows.start = all_to_all_v.start %t, %order, %ends axis=ep rows=8 to=rows : async f32[16, 4] rows0(ep) at layers.0
      %up = linear %t, %s : f32[4/ep, 4] at layers.0.shared
      %act = aten.silu %up : f32[4/ep, 4] at layers.0.shared
      %rows = wait %rows.start : f32[16, 4] rows0(ep) at layers.0
      %y = aten._grouped_mm %rows, %w, %own, none : f32[16, 4] rows0(ep) at layers.0.experts
      %back.start = all_to_all_v.start %y, %place, %ends axis=ep rows=16 to=parts : async f32[8/ep, 4] at layers.0
      %down = linear %act, %s : f32[4/ep, 4] at layers.0.shared
      %back = wait %back.start : f32[8/ep, 4] at layers.0
      %pairs = view %back : f32[4/ep, 2, 4] at layers.0
      %sum = aten.sum.dim_IntList %pairs dim=[1] : f32[4/ep, 4] at layers.0
      %out = aten.add.Tensor %sum, %down : f32[4/ep, 4] at layers.0
      %next = linear %t, %s : f32[4/ep, 4] at layers.1
      return %out, %next
  )");
}

TEST_CASE("cover_exchanges: what stands above an exchange and is not needed by it comes under it, up to a wait") {
  expect_pass("cover_exchanges", R"(
    graph mesh [ep=2] view local
      %s = param name=s : f32[4, 4] at layers.0.shared
      %x = input name=x : f32[8, 4]
      %place = input name=place : i64[8]
    fwd:
      %ends = full value=8 : i32[4]
      %t = own_part %x axis=ep dim=0 : f32[4/ep, 4] at layers.0
      %a = linear %t, %s : f32[4/ep, 4] at layers.0
      %g.start = all_gather.start %a axis=ep dim=0 : async f32[8, 4] at layers.0
      %g = wait %g.start : f32[8, 4] at layers.0
      %b = linear %t, %s : f32[4/ep, 4] at layers.0
      %c = aten.neg %a : f32[4/ep, 4] at layers.0
      %d = linear %b, %s : f32[4/ep, 4] at layers.0
      %rows.start = all_to_all_v.start %c, %place, %ends adds=true axis=ep rows=8 to=rows : async f32[8, 4] rows0(ep) at layers.0
      %rows = wait %rows.start : f32[8, 4] rows0(ep) at layers.0
      %again.start = all_to_all_v.start %rows, %place, %ends axis=ep rows=8 to=parts : async f32[4/ep, 4] at layers.0
      %again = wait %again.start : f32[4/ep, 4] at layers.0
      return %again, %d, %g
  )",
              R"(
    graph mesh [ep=2] view local
      %s = param name=s : f32[4, 4] at layers.0.shared
      %x = input name=x : f32[8, 4]
      %place = input name=place : i64[8]
    fwd:
      %ends = full value=8 : i32[4]
      %t = own_part %x axis=ep dim=0 : f32[4/ep, 4] at layers.0
      %a = linear %t, %s : f32[4/ep, 4] at layers.0
      %g.start = all_gather.start %a axis=ep dim=0 : async f32[8, 4] at layers.0
      %g = wait %g.start : f32[8, 4] at layers.0
      %c = aten.neg %a : f32[4/ep, 4] at layers.0
      %rows.start = all_to_all_v.start %c, %place, %ends adds=true axis=ep rows=8 to=rows : async f32[8, 4] rows0(ep) at layers.0
      %b = linear %t, %s : f32[4/ep, 4] at layers.0
      %d = linear %b, %s : f32[4/ep, 4] at layers.0
      %rows = wait %rows.start : f32[8, 4] rows0(ep) at layers.0
      %again.start = all_to_all_v.start %rows, %place, %ends axis=ep rows=8 to=parts : async f32[4/ep, 4] at layers.0
      %again = wait %again.start : f32[4/ep, 4] at layers.0
      return %again, %d, %g
  )");
}

TEST_CASE("cover_exchanges: nothing moves where all depends on what travels, or nothing is computed meanwhile") {
  expect_unchanged("cover_exchanges", R"(
    graph mesh [ep=2] view local
      %x = input name=x : f32[8, 4]
      %place = input name=place : i64[8]
    fwd:
      %ends = full value=8 : i32[4]
      %t = own_part %x axis=ep dim=0 : f32[4/ep, 4] at layers.0
      %rows.start = all_to_all_v.start %t, %place, %ends axis=ep rows=8 to=rows : async f32[8, 4] rows0(ep) at layers.0
      %rows = wait %rows.start : f32[8, 4] rows0(ep) at layers.0
      %a = aten.silu %rows : f32[8, 4] rows0(ep) at layers.0
      %b = aten.neg %t : f32[4/ep, 4] at layers.0
      %again.start = all_to_all_v.start %a, %place, %ends axis=ep rows=8 to=parts : async f32[4/ep, 4] at layers.0
      %again = wait %again.start : f32[4/ep, 4] at layers.0
      return %again, %b
  )");
}

}  // namespace
}  // namespace sfsdp::passes::cover_exchanges_test

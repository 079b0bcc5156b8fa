// SPDX-License-Identifier: BSD-3-Clause
// cover_permutes: what travels while attention is computed.
#include <doctest/doctest.h>

#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::cover_permutes_test {
namespace {

using testing::expect_pass;
using testing::expect_unchanged;

TEST_CASE(
    "cover_permutes: keys start one attention early, with their copy; gradients are waited for after the next one") {
  expect_pass("cover_permutes", R"(
    graph mesh [cp=3] view local
      %x = input name=x : f32[1, 2, 6, 4]
    fwd:
      %w = own_part %x axis=cp dim=2 : f32[1, 2, 2/cp, 4]
      %k = aten.neg %w : f32[1, 2, 2/cp, 4]
      %o, %l = sdpa %k, %k, %k axis=cp is_causal=true shift=0 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      %c = aten.clone %k : f32[1, 2, 2/cp, 4]
      %a.start = permute.start %c axis=cp shift=1 : async f32[1, 2, 2/cp, 4]
      %a = wait %a.start : f32[1, 2, 2/cp, 4]
      %a.v = aten.view %a size=[1, 2, 2, 4] : f32[1, 2, 2/cp, 4]
      %r = aten.relu %k : f32[1, 2, 2/cp, 4]
      %o1, %l1 = sdpa %k, %a.v, %a.v axis=cp is_causal=true shift=1 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      %b.start = permute.start %k axis=cp shift=2 : async f32[1, 2, 2/cp, 4]
      %b = wait %b.start : f32[1, 2, 2/cp, 4]
      %o2, %l2 = sdpa %k, %b, %b axis=cp is_causal=true shift=2 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      %g.start = permute.start %o2 axis=cp shift=2 : async f32[1, 2, 2/cp, 4]
      %g = wait %g.start : f32[1, 2, 2/cp, 4]
      %s = aten.relu %r : f32[1, 2, 2/cp, 4]
      %t = aten.relu %g : f32[1, 2, 2/cp, 4]
      return %o, %o1, %s, %t
  )",
              R"(
    graph mesh [cp=3] view local
      %x = input name=x : f32[1, 2, 6, 4]
    fwd:
      %w = own_part %x axis=cp dim=2 : f32[1, 2, 2/cp, 4]
      %k = aten.neg %w : f32[1, 2, 2/cp, 4]
      %c = aten.clone %k : f32[1, 2, 2/cp, 4]
      %a.start = permute.start %c axis=cp shift=1 : async f32[1, 2, 2/cp, 4]
      %o, %l = sdpa %k, %k, %k axis=cp is_causal=true shift=0 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      %r = aten.relu %k : f32[1, 2, 2/cp, 4]
      %b.start = permute.start %k axis=cp shift=2 : async f32[1, 2, 2/cp, 4]
      %a = wait %a.start : f32[1, 2, 2/cp, 4]
      %a.v = aten.view %a size=[1, 2, 2, 4] : f32[1, 2, 2/cp, 4]
      %o1, %l1 = sdpa %k, %a.v, %a.v axis=cp is_causal=true shift=1 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      %b = wait %b.start : f32[1, 2, 2/cp, 4]
      %o2, %l2 = sdpa %k, %b, %b axis=cp is_causal=true shift=2 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      %g.start = permute.start %o2 axis=cp shift=2 : async f32[1, 2, 2/cp, 4]
      %s = aten.relu %r : f32[1, 2, 2/cp, 4]
      %g = wait %g.start : f32[1, 2, 2/cp, 4]
      %t = aten.relu %g : f32[1, 2, 2/cp, 4]
      return %o, %o1, %s, %t
  )");
}

TEST_CASE("cover_permutes: keys that the attention above makes stay below it; what another section reads stays") {
  expect_unchanged("cover_permutes", R"(
    graph mesh [cp=2] view local
      %x = input name=x : f32[1, 2, 4, 4]
    fwd:
      %k = own_part %x axis=cp dim=2 : f32[1, 2, 2/cp, 4]
      %o, %l = sdpa %k, %k, %k axis=cp is_causal=true shift=0 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      %n = aten.neg %o : f32[1, 2, 2/cp, 4]
      %a.start = permute.start %n axis=cp shift=1 : async f32[1, 2, 2/cp, 4]
      %a = wait %a.start : f32[1, 2, 2/cp, 4]
      %o1, %l1 = sdpa %k, %a, %a axis=cp is_causal=true shift=1 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      %b.start = permute.start %o1 axis=cp shift=1 : async f32[1, 2, 2/cp, 4]
      %b = wait %b.start : f32[1, 2, 2/cp, 4]
      %y = aten.relu %o1 : f32[1, 2, 2/cp, 4]
    bwd:
      %z = aten.relu %b : f32[1, 2, 2/cp, 4]
      return %y, %z
  )");
}

// As remat leaves them, product by product.
TEST_CASE("cover_permutes: products of one rank's rows stand together, and the next rank's rows start before them") {
  expect_pass("cover_permutes", R"(
    graph mesh [tp=3] view local
      %x = input name=x : f32[6, 4]
      %w = param name=w : f32[2/tp, 4]
      %v = param name=v : f32[2/tp, 4]
    fwd:
      %n = own_part %x axis=tp dim=0 : f32[2/tp, 4]
      %a0 = linear %n, %w : f32[2, 2/tp]
      %n1.start = permute.start %n axis=tp shift=1 : async f32[2/tp, 4]
      %n1 = wait %n1.start : f32[2/tp, 4]
      %a1 = linear %n1, %w : f32[2, 2/tp]
      %n2.start = permute.start %n axis=tp shift=2 : async f32[2/tp, 4]
      %n2 = wait %n2.start : f32[2/tp, 4]
      %a2 = linear %n2, %w : f32[2, 2/tp]
      %a = join_parts [%a0, %a1, %a2] axis=tp dim=0 : f32[6, 2/tp]
      %b0 = linear %n, %v : f32[2, 2/tp]
      %b1 = linear %n1, %v : f32[2, 2/tp]
      %u = aten.relu %v : f32[2/tp, 4]
      %b2 = linear %n2, %u : f32[2, 2/tp]
      %b = join_parts [%b0, %b1, %b2] axis=tp dim=0 : f32[6, 2/tp]
      %p = aten.add.Tensor %a, %b : f32[6, 2/tp]
      %g = all_gather %n axis=tp dim=0 : f32[6, 4]
      return %g
  )",
              R"(
    graph mesh [tp=3] view local
      %x = input name=x : f32[6, 4]
      %w = param name=w : f32[2/tp, 4]
      %v = param name=v : f32[2/tp, 4]
    fwd:
      %n = own_part %x axis=tp dim=0 : f32[2/tp, 4]
      %n1.start = permute.start %n axis=tp shift=1 : async f32[2/tp, 4]
      %a0 = linear %n, %w : f32[2, 2/tp]
      %b0 = linear %n, %v : f32[2, 2/tp]
      %n2.start = permute.start %n axis=tp shift=2 : async f32[2/tp, 4]
      %n1 = wait %n1.start : f32[2/tp, 4]
      %a1 = linear %n1, %w : f32[2, 2/tp]
      %b1 = linear %n1, %v : f32[2, 2/tp]
      %n2 = wait %n2.start : f32[2/tp, 4]
      %a2 = linear %n2, %w : f32[2, 2/tp]
      %a = join_parts [%a0, %a1, %a2] axis=tp dim=0 : f32[6, 2/tp]
      %u = aten.relu %v : f32[2/tp, 4]
      %b2 = linear %n2, %u : f32[2, 2/tp]
      %b = join_parts [%b0, %b1, %b2] axis=tp dim=0 : f32[6, 2/tp]
      %p = aten.add.Tensor %a, %b : f32[6, 2/tp]
      %g = all_gather %n axis=tp dim=0 : f32[6, 4]
      return %g
  )");
}

TEST_CASE(
    "cover_permutes: keys that are sent on are waited for before they are sent, though attention reads them first") {
  expect_pass("cover_permutes", R"(
    graph mesh [cp=3] view local
      %x = input name=x : f32[1, 2, 6, 4]
    fwd:
      %k = own_part %x axis=cp dim=2 : f32[1, 2, 2/cp, 4]
      %a.start = permute.start %k axis=cp shift=1 : async f32[1, 2, 2/cp, 4]
      %a = wait %a.start : f32[1, 2, 2/cp, 4]
      %o1, %l1 = sdpa %k, %a, %a axis=cp is_causal=true shift=1 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      %b.start = permute.start %a axis=cp shift=1 : async f32[1, 2, 2/cp, 4]
      %b = wait %b.start : f32[1, 2, 2/cp, 4]
      %o2, %l2 = sdpa %k, %b, %b axis=cp is_causal=true shift=2 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      return %o1, %o2
  )",
              R"(
    graph mesh [cp=3] view local
      %x = input name=x : f32[1, 2, 6, 4]
    fwd:
      %k = own_part %x axis=cp dim=2 : f32[1, 2, 2/cp, 4]
      %a.start = permute.start %k axis=cp shift=1 : async f32[1, 2, 2/cp, 4]
      %a = wait %a.start : f32[1, 2, 2/cp, 4]
      %b.start = permute.start %a axis=cp shift=1 : async f32[1, 2, 2/cp, 4]
      %o1, %l1 = sdpa %k, %a, %a axis=cp is_causal=true shift=1 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      %b = wait %b.start : f32[1, 2, 2/cp, 4]
      %o2, %l2 = sdpa %k, %b, %b axis=cp is_causal=true shift=2 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      return %o1, %o2
  )");
}

TEST_CASE(
    "cover_permutes: keys that attention reads in two forms start one attention early, and are waited for at it") {
  expect_pass("cover_permutes", R"(
    graph mesh [cp=2] view local
      %x = input name=x : f32[1, 2, 4, 4]
    fwd:
      %k = own_part %x axis=cp dim=2 : f32[1, 2, 2/cp, 4]
      %o, %l = sdpa %k, %k, %k axis=cp is_causal=true shift=0 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      %a.start = permute.start %k axis=cp shift=1 : async f32[1, 2, 2/cp, 4]
      %a = wait %a.start : f32[1, 2, 2/cp, 4]
      %a.v = aten.view %a size=[1, 2, 2, 4] : f32[1, 2, 2/cp, 4]
      %a.w = aten.view %a size=[1, 2, 2, 4] : f32[1, 2, 2/cp, 4]
      %r = aten.relu %k : f32[1, 2, 2/cp, 4]
      %o1, %l1 = sdpa %k, %a.v, %a.w axis=cp is_causal=true shift=1 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      return %o, %o1, %r
  )",
              R"(
    graph mesh [cp=2] view local
      %x = input name=x : f32[1, 2, 4, 4]
    fwd:
      %k = own_part %x axis=cp dim=2 : f32[1, 2, 2/cp, 4]
      %a.start = permute.start %k axis=cp shift=1 : async f32[1, 2, 2/cp, 4]
      %o, %l = sdpa %k, %k, %k axis=cp is_causal=true shift=0 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      %r = aten.relu %k : f32[1, 2, 2/cp, 4]
      %a = wait %a.start : f32[1, 2, 2/cp, 4]
      %a.v = aten.view %a size=[1, 2, 2, 4] : f32[1, 2, 2/cp, 4]
      %a.w = aten.view %a size=[1, 2, 2, 4] : f32[1, 2, 2/cp, 4]
      %o1, %l1 = sdpa %k, %a.v, %a.w axis=cp is_causal=true shift=1 : f32[1, 2, 2/cp, 4], f32[1, 2, 2/cp]
      return %o, %o1, %r
  )");
}

}  // namespace
}  // namespace sfsdp::passes::cover_permutes_test

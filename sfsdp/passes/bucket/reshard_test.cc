// SPDX-License-Identifier: BSD-3-Clause
// reshard: whose second gather goes, by keep=true and by being read last.
#include "sfsdp/passes/bucket/reshard.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::reshard_test {
namespace {

// Units a and b in forward, b and a in backward; both gathered anew there unless said otherwise.
std::string step(const char* a_attrs, const char* b_attrs, bool a_again = true, bool b_again = true) {
  return concat(R"(
    graph mesh [dp_shard=2] view local
      %a = param )",
                a_attrs, R"(name=a unit=a : f32[2/dp_shard, 4]
      %b = param )",
                b_attrs, R"(name=b unit=b : f32[2/dp_shard, 4]
      %x = input name=x : f32[4, 4] own(dp_shard)
    fwd:
      %a.full = all_gather %a axis=dp_shard dim=0 : f32[4, 4]
      %y = aten.mm %x, %a.full : f32[4, 4]
      %b.full = all_gather %b axis=dp_shard dim=0 : f32[4, 4]
      %z = aten.mm %y, %b.full : f32[4, 4]
    bwd:)",
                b_again ? "\n      %b.again = all_gather %b axis=dp_shard dim=0 : f32[4, 4]" : "",
                concat("\n      %g = aten.mm %z, ", b_again ? "%b.again" : "%b.full", " : f32[4, 4]"),
                a_again ? "\n      %a.again = all_gather %a axis=dp_shard dim=0 : f32[4, 4]" : "",
                concat("\n      %h = aten.mm %g, ", a_again ? "%a.again" : "%a.full", " : f32[4, 4]"), R"(
      return %h
  )");
}

TEST_CASE("reshard: params with keep=true are gathered once") {
  testing::expect_pass("reshard", step("keep=true ", ""), step("keep=true ", "", false, true));
  testing::expect_unchanged("reshard", step("keep=false ", ""));
}

TEST_CASE("reshard: the unit that forward reads last is kept, and says so") {
  testing::expect_pass("reshard keep_last=true", step("", ""), step("", "keep=true ", true, false));
  testing::expect_unchanged("reshard keep_last=true", step("", "", true, false));
}

TEST_CASE("reshard: what a rule of tp cuts and an op of backward wants whole is gathered over tp all the same") {
  const std::string before = R"(
    graph mesh [dp_shard=2, tp=2] view local
      %a = param keep=true name=a unit=a : f32[2/tp/dp_shard, 4]
      %x = input name=x : f32[4, 4] own(dp_shard)
    fwd:
      %a.full = all_gather %a axis=dp_shard dim=0 : f32[4/tp, 4]
      %a.whole = all_gather %a.full axis=tp dim=0 : f32[8, 4]
      %y = aten.mm %a.whole, %x : f32[8, 4] own(dp_shard)
    bwd:
      AGAIN
      %a.w = all_gather %FULL axis=tp dim=0 : f32[8, 4]
      %h = aten.mul.Tensor %a.w, %y : f32[8, 4] own(dp_shard)
      return %h
  )";
  const auto with = [&](const std::string& again, const std::string& full) {
    std::string text = before;
    text.replace(text.find("      AGAIN\n"), 12, again);
    return text.replace(text.find("FULL"), 4, full);
  };
  testing::expect_pass("reshard",
                       with("      %a.again = all_gather %a axis=dp_shard dim=0 : f32[4/tp, 4]\n", "a.again"),
                       with("", "a.full"));
}

}  // namespace
}  // namespace sfsdp::passes::reshard_test

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/diff.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::plan::diff_test {
namespace {

const char* const kText = R"(graph mesh [dp_shard=2] view local
  %w = param name=w : f32[4/dp_shard, 8]
  %x = input name=x : f32[4, 8] own(dp_shard)
fwd:
  %g.start = all_gather.start %w axis=dp_shard dim=0 : async f32[8, 8]
  %a = aten.neg %x kernel=0 : f32[4, 8]
  %g = wait %g.start : f32[8, 8]
  %b = aten.relu %a kernel=1 : f32[4, 8]
  %y = linear %b, %g kernel=2 : f32[4, 8]
  return %y
)";

std::string plan_text() { return print(make_plan(ir::parse_or_throw(kText))); }

// What a plan and itself with `from` replaced by `to`, everywhere, differ in.
std::string diff(const std::string& from, const std::string& to, size_t most = 10) {
  const std::string text = plan_text();
  std::string other = text;
  REQUIRE(other.find(from) != std::string::npos);
  for (size_t at = 0; (at = other.find(from, at)) != std::string::npos; at += to.size())
    other.replace(at, from.size(), to);
  return join(differences(parse_plan(text), parse_plan(other), most), "\n");
}

TEST_CASE("plan diff: a plan and itself differ in nothing") {
  CHECK(differences(parse_plan(plan_text()), parse_plan(plan_text())).empty());
}

TEST_CASE("plan diff: each kind of difference in words") {
  const std::string text = plan_text();
  CAPTURE(text);
  CHECK(diff("plan target=cpu product_bytes=10518528", "plan target=gpu product_bytes=64") ==
        "target is in A cpu\n    in B gpu\ntarget product_bytes is in A 10518528\n    in B 64");
  CHECK(diff("aten.relu", "aten.exp") ==
        "op %b is in A [fwd] %b = aten.relu %a : f32[4, 8]\n    in B [fwd] %b = aten.exp %a : f32[4, 8]");
  CHECK(diff("relu %a kernel=1", "relu %a kernel=0")
            .find("kernel %a is in A alone\nkernel %b is in A alone\nkernel %a %b is in B alone") != std::string::npos);
  CHECK(diff("compute workspace=10518528:", "compute workspace=64:") ==
        "lane compute is in A workspace 10518528\n    in B workspace 64");
  CHECK(diff("  dp_shard/0.0 -> compute.1\n", "  dp_shard/0.0 -> compute.2\n") ==
        "edge %g.start -> kernel of %b is in A alone\nedge %g.start -> kernel of %y is in B alone");
  CHECK(diff("  batch before compute.0", "  batch before compute.1") ==
        "batch before kernel of %a is in A alone\nbatch before kernel of %b is in B alone");
  CHECK(diff("  %b inside %a at +0", "  %b inside %a at +4") ==
        "place of %b is in A inside %a at +0\n    in B inside %a at +4");
  CHECK(diff("views:\n", "views:\n  %g at +4 +8*dp_shard\n") == "view %g is in B alone: %g at +4 +8*dp_shard");
  CHECK(diff("return %y", "return %b") == "the step is in A return %y\n    in B return %b");
}

TEST_CASE("plan diff: addresses, lifetimes and sizes of regions, by the names of ops") {
  const std::string text = plan_text();
  CAPTURE(text);
  const size_t at = text.find("\n  %y window offset=") + 1;
  const std::string line = text.substr(at, text.find('\n', at) - at);
  std::string moved = line;
  moved.replace(moved.find("last=7"), 6, "last=6");
  const std::string difference = diff(line, moved);
  CHECK(difference.starts_with("place of %y is in A window offset="));
  CHECK(difference.find(" from %y to the end\n    in B window offset=") != std::string::npos);
  CHECK(difference.ends_with(" from %y to %y"));
  CHECK(diff("  constant bytes=0", "  constant bytes=64") == "region constant is in A 0 bytes\n    in B 64 bytes");
}

TEST_CASE("plan diff: ops that are in one plan alone, or run in another order") {
  const std::string text = kText, relu = "  %b = aten.relu %a kernel=1 : f32[4, 8]\n";
  std::string without = text, later = text;
  without.erase(without.find(relu), relu.size());
  without.replace(without.find("linear %b"), 9, "linear %a");
  const std::string wait = "  %g = wait %g.start : f32[8, 8]\n";
  later.erase(later.find(wait), wait.size());
  later.insert(later.find("  %y = linear"), wait);
  const auto against = [&](const std::string& other, size_t most = 10) {
    return join(differences(make_plan(ir::parse_or_throw(text)), make_plan(ir::parse_or_throw(other)), most), "\n");
  };
  CHECK(against(without).starts_with(
      "op %b is in A alone: [fwd] %b = aten.relu %a : f32[4, 8]\nop %y is in A [fwd] %y = linear %b, %g"));
  CHECK(against(later).starts_with("order: %g runs in A after %a, in B after %b"));
  CHECK(
      against(without, 1).starts_with("op %b is in A alone: [fwd] %b = aten.relu %a : f32[4, 8]\n... and 1 more ops"));
}

TEST_CASE("plan diff: what names do not say is shown by line") {
  CHECK(diff("relu %a kernel=1 : f32[4, 8]\n  %y = linear %b, %g kernel=2",
             "relu %a kernel=5 : f32[4, 8]\n  %y = linear %b, %g kernel=6") ==
        "line 9 is in A   %b = aten.relu %a kernel=1 : f32[4, 8]\n    in B   %b = aten.relu %a kernel=5 : f32[4, 8]");
}

}  // namespace
}  // namespace sfsdp::plan::diff_test

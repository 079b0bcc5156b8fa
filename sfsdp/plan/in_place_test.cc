// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/in_place.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::plan::in_place_test {
namespace {

struct Case {
  NotOver why;
  const char* operand;  // what %y comes nearest to; "": nothing
  const char* text;     // makes %y
  int64_t micro_batches = 1;
};

const Case kCases[] = {
    {NotOver::KernelOfOthers, "", "fwd:\n  %a = aten.neg %x : f32[4, 8]\n  %y = aten.cumprod %a dim=0 : f32[4, 8]\n"},
    {NotOver::CarriedSum, "", "bwd:\n  %a = aten.neg %x : f32[4, 8]\n  %y = accumulate %a : f32[4, 8]\n", 2},
    {NotOver::AfterAllRows, "",
     "bwd:\n  %a = aten.neg %one : f32[1, 8]\n  %dx, %y = rms_norm_backward %a, %one, %v, %r, none dims=1 : f32[1, 8], "
     "f32[8]\n"},
    {NotOver::NothingToTake, "", "fwd:\n  %y = aten.neg %w : f32[4, 8]\n"},
    {NotOver::Kept, "a",
     "fwd:\n  %a = aten.neg %x : f32[4, 8]\n  %y = aten.relu %a : f32[4, 8]\n  %z = aten.exp %a : f32[4, 8]\n"},
    {NotOver::Taken, "a",
     "fwd:\n  %a = aten.neg %x : f32[4, 8]\n  %z = aten.relu %a kernel=1 : f32[4, 8]\n  %y = aten.exp %a kernel=1 : "
     "f32[4, "
     "8]\n  %e = aten.add.Tensor %y, %z kernel=2 : f32[4, 8]\n"},
    {NotOver::OtherSize, "a", "fwd:\n  %a = aten.neg %x : f32[4, 8]\n  %y = cast %a : bf16[4, 8]\n"},
    {NotOver::NextMicroBatch, "a", "  %a = aten.neg %w : f32[4, 8]\nfwd:\n  %y = aten.relu %a : f32[4, 8]\n", 2},
    {NotOver::NextMicroBatch, "s", "bwd:\n  %s = accumulate %x : f32[4, 8]\n  %y = aten.relu %s : f32[4, 8]\n", 2},
    {NotOver::ReadElsewhere, "a", "fwd:\n  %a = aten.neg %x : f32[4, 8]\n  %y = linear %a, %square : f32[4, 8]\n"},
};

const char* const kGiven = R"(graph mesh [a=2] view local
  %w = param name=w : f32[4, 8]
  %square = param name=square : f32[8, 8]
  %v = param name=v : f32[8]
  %x = input name=x : f32[4, 8]
  %one = input name=one : f32[1, 8]
  %r = input name=r : f32[1, 1]
)";

TEST_CASE("a result that lies over no operand has a reason: each once") {
  std::set<NotOver> seen;
  for (const Case& c : kCases) {
    CAPTURE(c.text);
    ir::Graph graph = ir::parse_or_throw(concat(kGiven, c.text, "  return %y\n"), "test.ir");
    graph.micro_batches = c.micro_batches;
    std::vector<OwnMemory> own;
    const Lifetimes lifetimes = find_buffers(graph, {}, &own);
    const auto found = std::ranges::find(own, graph.find_value("y"), &OwnMemory::result);
    REQUIRE(found != own.end());
    CHECK_MESSAGE(found->why == c.why, to_string(found->why));
    CHECK((found->operand ? found->operand->name() : "") == c.operand);
    CHECK(std::ranges::none_of(lifetimes.inside, [&](const Inside& i) { return i.value == found->result; }));
    seen.insert(c.why);
  }
  CHECK(seen.size() == kNotOvers - 1);
}

TEST_CASE("a result that lies over an operand needs no reason") {
  const ir::Graph graph = ir::parse_or_throw(
      concat(kGiven, "fwd:\n  %a = aten.neg %x : f32[4, 8]\n  %y = aten.relu %a : f32[4, 8]\n  return %y\n"));
  std::vector<OwnMemory> own;
  CHECK(find_buffers(graph, {}, &own).inside.size() == 1);
  REQUIRE(own.size() == 1);  // that of %a: the batch is not overwritten
  CHECK(own[0].result->name() == "a");
  CHECK(own[0].why == NotOver::NothingToTake);
}

}  // namespace
}  // namespace sfsdp::plan::in_place_test

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/grouping.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::passes::grouping_test {
namespace {

struct Case {
  Apart why;
  const char* op;     // the first result of the op that is apart
  const char* other;  // of the kernel that it might have joined
  const char* text;   // what stands below the values that are given
  FuseScope scope = FuseScope::All;
};

// A reader of %y, which is an element-wise kernel on [4, 8].
const Case kCases[] = {
    {Apart::Collective, "z", "y",
     "%y = aten.relu %x : f32[4, 8]\n  %g = all_gather %w axis=a dim=0 : f32[8, 8]\n  %z = aten.neg %y : f32[4, 8]"},
    {Apart::ReadByAnother, "z", "y",
     "%y = aten.relu %x : f32[4, 8]\n  %m = linear %y, %square : f32[4, 8]\n  %z = aten.neg %y : f32[4, 8]"},
    {Apart::WritesWhatIsRead, "s", "y",
     "%a = aten.neg %x : f32[4, 8]\n  %g = all_gather %w axis=a dim=0 : f32[8, 8]\n  %y = aten.relu %a : f32[4, 8]\n"
     "  %s = scale %a, %c donates=[0] : f32[4, 8]"},
    {Apart::WrittenOver, "z", "y",
     "%a = aten.neg %x : f32[4, 8]\n  %g = all_gather %w axis=a dim=0 : f32[8, 8]\n  %y = aten.relu %a : f32[4, 8]\n"
     "  %s = scale %a, %c donates=[0] : f32[4, 8]\n  %z = aten.neg %y : f32[4, 8]"},
    {Apart::AfterUpdate, "z", "w.new",
     "opt:\n  %w.new = sgd %w, none, %w, %c momentum=0.0 weight_decay=0.0 : f32[4, 8]\n  %z = aten.neg %w.new : f32[4, "
     "8]"},
    {Apart::EndsWithItsOp, "z", "y",
     "%y = aten.sum.dim_IntList %x dim=[0] keepdim=true : f32[1, 8]\n  %z = aten.neg %y : f32[1, 8]"},
    {Apart::Scope, "z", "y", "%y = aten.relu %x : f32[4, 8]\n  %z = aten.neg %y : f32[4, 8]", FuseScope::None},
    {Apart::Once, "z", "y", "%y = aten.relu %x : f32[4, 8]\n  %z = aten.neg %y once=true : f32[4, 8]"},
    {Apart::Section, "z", "y", "%y = aten.relu %x : f32[4, 8]\nloss:\n  %z = aten.neg %y : f32[4, 8]"},
    {Apart::BeginsItsOwn, "z", "y", "%y = aten.relu %x : f32[4, 8]\n  %z = linear %y, %square : f32[4, 8]"},
    {Apart::NotByPlace, "z", "y", "%y = aten.relu %x : f32[4, 8]\n  %z = aten.flip %y dims=[0] : f32[4, 8]"},
    {Apart::OtherUpdate, "w.new", "y",
     "opt:\n  %y = aten.relu %w : f32[4, 8]\n  %w.new = sgd %w, none, %y, %c momentum=0.0 weight_decay=0.0 : f32[4, "
     "8]"},
    {Apart::JoinedAnother, "z", "y",
     "%y = aten.relu %x : f32[4, 8]\n  %b = aten.neg %v : f32[4, 8]\n  %z = aten.add.Tensor %y, %b : f32[4, 8]"},
    {Apart::RowsOfTiles, "z", "y",
     "%y = linear %x, %square : f32[4, 8]\n  %z = aten._softmax %y dim=1 half_to_float=false : f32[4, 8]"},
    {Apart::NotInRows, "z", "y",
     "%y = aten.relu %x : f32[4, 8]\n  %z = aten.sum.dim_IntList %y dim=[0] keepdim=true : f32[1, 8]"},
    {Apart::OtherWidth, "z", "y",
     "%y = aten._softmax %x dim=1 half_to_float=false : f32[4, 8]\n  %h = aten.view %y size=[8, 4] : f32[8, 4]\n"
     "  %z = aten._softmax %h dim=1 half_to_float=false : f32[8, 4]"},
    {Apart::OtherSize, "z", "y", "%y = aten.relu %v8 : f32[8]\n  %z = aten.add.Tensor %x, %y : f32[4, 8]"},
    {Apart::PartsOfProduct, "z", "q",
     "%q, %k = joined_linear %x, %wide widths=[8, 16] : f32[4, 8], f32[4, 16]\n  %h = narrow %k dim=1 length=8 start=0 "
     ": "
     "f32[4, 8]{16, 1}\n  %z = aten.add.Tensor %q, %h : f32[4, 8]"},
    {Apart::Pairs, "z", "y",
     "%y = rope %t, %cos, %cos : f32[2, 6, 4]\n  %h = aten.view %y size=[2, 12, 2] : f32[2, 12, 2]\n"
     "  %z = rope %h, %cos2, %cos2 : f32[2, 12, 2]"},
    {Apart::AfterAllRows, "z", "y",
     "%y, %dw = rms_norm_backward %one, %one, %v8, %r, none dims=1 : f32[1, 8], f32[8]\n  %z = aten.neg %dw : f32[8]"},
    {Apart::OtherOrder, "z", "y",
     "%y = aten.relu %x : f32[4, 8]\n  %h = aten.t %y : f32[8, 4]{1, 8}\n  %z = aten.neg %h : f32[8, 4]"},
    {Apart::OtherElements, "z", "n",
     "%n = aten.sum.dim_IntList %x dim=[1] keepdim=true : f32[4, 1]\n  %h = aten.view %n size=[1, 4] : f32[1, 4]\n"
     "  %u = aten.view %x size=[8, 4] : f32[8, 4]\n  %z = aten.mul.Tensor %u, %h : f32[8, 4]"},
};

const char* const kGiven = R"(graph mesh [a=2] view local
  %w = param name=w : f32[4/a, 8]
  %square = param name=square : f32[8, 8]
  %wide = param name=wide : f32[24, 8]
  %x = input name=x : f32[4, 8]
  %v = input name=v : f32[4, 8]
  %one = input name=one : f32[1, 8]
  %v8 = input name=v8 : f32[8]
  %r = input name=r : f32[1, 1]
  %c = input name=c : f32[]
  %t = input name=t : f32[2, 6, 4]
  %cos = input name=cos : f32[6, 2]
  %cos2 = input name=cos2 : f32[12, 1]
fwd:
  )";

TEST_CASE("fuse says why two kernels were not joined: each reason once") {
  std::set<Apart> seen;
  for (const Case& c : kCases) {
    CAPTURE(c.text);
    const ir::Graph graph = ir::parse_or_throw(concat(kGiven, c.text, "\n"), "test.ir");
    std::vector<Refusal> refusals;
    const Grouping grouping(graph, c.scope, &refusals);
    const auto found = std::ranges::find_if(refusals, [&](const Refusal& r) {
      return r.op == graph.find_value(c.op)->producer() && r.other == graph.find_value(c.other)->producer();
    });
    REQUIRE(found != refusals.end());
    CHECK_MESSAGE(found->why == c.why, to_string(found->why));
    seen.insert(c.why);
  }
  CHECK(seen.size() == kAparts - 1);
}

TEST_CASE("fuse says nothing of what it joins, and each pair of kernels once") {
  const ir::Graph graph = ir::parse_or_throw(concat(kGiven, R"(%y = aten.relu %x : f32[4, 8]
  %z = aten.neg %y : f32[4, 8]
  %b = aten.add.Tensor %z, %y : f32[4, 8]
  %m = linear %b, %square : f32[4, 8]
)"));
  std::vector<Refusal> refusals;
  const Grouping grouping(graph, FuseScope::All, &refusals);
  REQUIRE(refusals.size() == 1);
  CHECK(refusals[0].op->is("linear"));
  CHECK(grouping.kernels().size() == 2);
}

}  // namespace
}  // namespace sfsdp::passes::grouping_test

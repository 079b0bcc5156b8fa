// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/cleanup/keep_in_place.h"

#include <doctest/doctest.h>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::keep_in_place_test {
namespace {

using testing::expect_pass, testing::expect_unchanged;

TEST_CASE(
    "keep_in_place: a running mean is stored after the last op that reads the old one, a step count counts in place") {
  expect_pass("keep_in_place", R"(
    graph mesh [dp_shard=2] view local micro_batches=3
      %mean = state name=mean : f32[4]
      %step = state name=step : f32[]
      %x = input name=x : f32[4] own(dp_shard)
    fwd:
      %centred = aten.sub.Tensor %x, %mean : f32[4]
      %half = aten.mul.Scalar %centred other=0.5 : f32[4]
      %mean.new = aten.add.Tensor %mean, %half : f32[4]
    bwd:
      %late = aten.mul.Tensor %half, %mean : f32[4]
      %after = aten.neg %late : f32[4]
    opt:
      %zero = scalar value=0.0 : f32[]
      %step.new = step_count %step, %zero : f32[]
      return %after
      carry %mean = %mean.new
      carry %step = %step.new
  )",
              R"(
    graph mesh [dp_shard=2] view local micro_batches=3
      %mean = state name=mean : f32[4]
      %step = state name=step : f32[]
      %x = input name=x : f32[4] own(dp_shard)
    fwd:
      %centred = aten.sub.Tensor %x, %mean : f32[4]
      %half = aten.mul.Scalar %centred other=0.5 : f32[4]
      %mean.new = aten.add.Tensor %mean, %half : f32[4]
    bwd:
      %late = aten.mul.Tensor %half, %mean : f32[4]
      %mean.stored = store %mean, %mean.new donates=[0] : f32[4]
      %after = aten.neg %late : f32[4]
    opt:
      %zero = scalar value=0.0 : f32[]
      %step.new = step_count %step, %zero donates=[0] : f32[]
      return %after
      carry %mean = %mean.stored
      carry %step = %step.new
  )");
}

TEST_CASE("keep_in_place: what is made in place already stays as it is") {
  expect_unchanged("keep_in_place", R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[4/dp_shard]
      %x = input name=x : f32[8] own(dp_shard)
    opt:
      %g = reduce_scatter %x axis=dp_shard dim=0 : f32[4]
      %nf = scalar value=0.0 : f32[]
      %w.new = sgd %w, none, %g, %nf donates=[0] momentum=0.0 weight_decay=0.0 : f32[4/dp_shard]
      return %g
      carry %w = %w.new
  )");
}

TEST_CASE("keep_in_place: a value that is read after all micro-batches cannot be replaced by each of them") {
  ir::Graph graph = ir::parse_or_throw(R"(
    graph mesh [dp_shard=2] view local micro_batches=2
      %mean = state name=mean : f32[4]
      %x = input name=x : f32[4] own(dp_shard)
    fwd:
      %mean.new = aten.add.Tensor %mean, %x : f32[4]
    opt:
      %late = aten.neg %mean : f32[4]
      return %late
      carry %mean = %mean.new
  )");
  const std::vector<PassCall> calls = {make_call("keep_in_place")};
  CHECK_THROWS_WITH_AS(run_passes(graph, calls, {}), doctest::Contains("%late reads %mean after all micro-batches"),
                       UserError);
}

TEST_CASE("keep_in_place: a transposed view of what it replaces cannot be left there") {
  ir::Graph graph = ir::parse_or_throw(R"(
    graph mesh [dp_shard=2] view local
      %w = state name=w : f32[4, 4]
    fwd:
      %t = aten.t %w : f32[4, 4]{1, 4}
      %y = aten.relu %t : f32[4, 4]
      return %y
      carry %w = %t
  )");
  const std::vector<PassCall> calls = {make_call("keep_in_place")};
  CHECK_THROWS_WITH_AS(run_passes(graph, calls, {}), doctest::Contains("shows the same memory in another order"),
                       UserError);
}

TEST_CASE("keep_in_place: what a collective reads is replaced after its wait") {
  expect_pass("keep_in_place", R"(
    graph mesh [dp_replicate=2] view local
      %m = state name=m : f32[4]
      %x = input name=x : f32[4] own(dp_replicate)
    fwd:
      %next = aten.relu %x : f32[4] own(dp_replicate)
      %m.start = all_reduce.start %m axis=dp_replicate : async f32[4]
      %y = aten.relu %next : f32[4] own(dp_replicate)
      %m.sum = wait %m.start : f32[4]
      return %m.sum, %y
      carry %m = %next
  )",
              R"(
    graph mesh [dp_replicate=2] view local
      %m = state name=m : f32[4]
      %x = input name=x : f32[4] own(dp_replicate)
    fwd:
      %next = aten.relu %x : f32[4] own(dp_replicate)
      %m.start = all_reduce.start %m axis=dp_replicate : async f32[4]
      %y = aten.relu %next : f32[4] own(dp_replicate)
      %m.sum = wait %m.start : f32[4]
      %m.stored = store %m, %next donates=[0] : f32[4]
      return %m.sum, %y
      carry %m = %m.stored
  )");
}

TEST_CASE("keep_in_place: what an op writes over is no place for another value") {
  ir::Graph graph = ir::parse_or_throw(R"(
    graph mesh [dp_shard=2] view local
      %m = state name=m : f32[4]
      %x = input name=x : f32[4]
    fwd:
      %g = aten.relu %x : f32[4]
      %n = aten.add.Tensor %m, %g donates=[0] : f32[4]
      return %n
      carry %m = %g
  )");
  const std::vector<PassCall> calls = {make_call("keep_in_place")};
  CHECK_THROWS_WITH_AS(run_passes(graph, calls, {}), doctest::Contains("takes the memory of %m, where %g is left"),
                       UserError);
}

TEST_CASE(
    "keep_in_place: a part of the batch that is carried on is stored in forward, after all that the graph is given") {
  expect_pass("keep_in_place", R"(
    graph mesh [dp_shard=2] view local
      %r0 = state name=r0 : f32[4, 4]
      %x = input name=x : f32[4, 4] own(dp_shard)
      %r1 = param name=r1 : f32[4, 4]
      return %r1
      carry %r0 = %x
  )",
              R"(
    graph mesh [dp_shard=2] view local
      %r0 = state name=r0 : f32[4, 4]
      %x = input name=x : f32[4, 4] own(dp_shard)
      %r1 = param name=r1 : f32[4, 4]
    fwd:
      %r0.stored = store %r0, %x donates=[0] : f32[4, 4]
      return %r1
      carry %r0 = %r0.stored
  )");
}

}  // namespace
}  // namespace sfsdp::passes::keep_in_place_test

// SPDX-License-Identifier: BSD-3-Clause
// early_all_reduces: when what is reduced once per step starts, and in which order the tail follows.
#include <doctest/doctest.h>

#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::early_all_reduces_test {
namespace {

using testing::expect_pass;
using testing::expect_unchanged;

std::string with_two(std::string text) {
  const std::string view = "view local";
  return text.replace(text.find(view), view.size(), view + " micro_batches=2");
}

// Two units of HSDP as sink_waits leaves them, b's gradient first; clipped.
constexpr const char* kClipped = R"(
    graph mesh [dp_replicate=2, dp_shard=2] view local
      %a = param name=a : f32[4/dp_shard]
      %b = param name=b : f32[4/dp_shard]
      %x = input name=x : f32[8] own(dp_replicate, dp_shard)
    bwd:
      %l = aten.sum %x : f32[]
      %b.g = aten.neg %x : f32[8]
      %b.rs.start = reduce_scatter.start %b.g axis=dp_shard dim=0 : async f32[4]
      %a.g = aten.neg %b.g : f32[8]
      %b.rs = wait %b.rs.start : f32[4]
      %b.acc = accumulate %b.rs : f32[4]
      %a.rs.start = reduce_scatter.start %a.g axis=dp_shard dim=0 : async f32[4]
      %a.rs = wait %a.rs.start : f32[4]
      %a.acc = accumulate %a.rs : f32[4]
    clip:
      %a.ar = all_reduce %a.acc axis=dp_replicate : f32[4]
      %a.grad = gradient %a.ar param=a : f32[4]
      %b.ar = all_reduce %b.acc axis=dp_replicate : f32[4]
      %b.grad = gradient %b.ar param=b : f32[4]
    loss:
      %l.sum = accumulate %l : f32[]
    clip:
      %share = mul_scalar %l.sum value=0.25 : f32[]
      %mean = all_reduce %share axis=[dp_replicate, dp_shard] : f32[]
      %sq = sum_squares [%a.grad, %b.grad] axis=dp_shard replicated=[false, false] : f64[2]
      %sq.all = all_reduce %sq axis=dp_shard : f64[2]
      %norm = grad_norm %sq.all : f64[]
      %bad = non_finite %norm : f32[]
      %by = clip_coefficient %norm max_norm=1.0 : f32[]
      %a.clipped = scale %a.grad, %by : f32[4]
      %b.clipped = scale %b.grad, %by : f32[4]
    opt:
      %a.new = sgd %a, none, %a.clipped, %bad donates=[0] momentum=0.0 weight_decay=0.0 : f32[4/dp_shard]
      %b.new = sgd %b, none, %b.clipped, %bad donates=[0] momentum=0.0 weight_decay=0.0 : f32[4/dp_shard]
      return %mean, %norm
      carry %a = %a.new
      carry %b = %b.new
  )";

TEST_CASE("early_all_reduces: all-reduces under backward, one barrier for the norm, the loss waited for last") {
  expect_pass("early_all_reduces", kClipped, R"(
    graph mesh [dp_replicate=2, dp_shard=2] view local
      %a = param name=a : f32[4/dp_shard]
      %b = param name=b : f32[4/dp_shard]
      %x = input name=x : f32[8] own(dp_replicate, dp_shard)
    bwd:
      %l = aten.sum %x : f32[]
      %b.g = aten.neg %x : f32[8]
      %b.rs.start = reduce_scatter.start %b.g axis=dp_shard dim=0 : async f32[4]
      %a.g = aten.neg %b.g : f32[8]
      %b.rs = wait %b.rs.start : f32[4]
      %b.acc = accumulate %b.rs : f32[4]
      %b.ar.start = all_reduce.start %b.acc axis=dp_replicate : async f32[4]
      %a.rs.start = reduce_scatter.start %a.g axis=dp_shard dim=0 : async f32[4]
      %a.rs = wait %a.rs.start : f32[4]
      %a.acc = accumulate %a.rs : f32[4]
      %a.ar.start = all_reduce.start %a.acc axis=dp_replicate : async f32[4]
    loss:
      %l.sum = accumulate %l : f32[]
    clip:
      %share = mul_scalar %l.sum value=0.25 : f32[]
      %mean.start = all_reduce.start %share axis=[dp_replicate, dp_shard] : async f32[]
      %b.ar = wait %b.ar.start : f32[4]
      %b.grad = gradient %b.ar param=b : f32[4]
      %a.ar = wait %a.ar.start : f32[4]
      %a.grad = gradient %a.ar param=a : f32[4]
      %sq = sum_squares [%a.grad, %b.grad] axis=dp_shard replicated=[false, false] : f64[2]
      %sq.all = all_reduce %sq axis=dp_shard : f64[2]
      %norm = grad_norm %sq.all : f64[]
      %by = clip_coefficient %norm max_norm=1.0 : f32[]
      %b.clipped = scale %b.grad, %by : f32[4]
      %bad = non_finite %norm : f32[]
    opt:
      %b.new = sgd %b, none, %b.clipped, %bad donates=[0] momentum=0.0 weight_decay=0.0 : f32[4/dp_shard]
    clip:
      %a.clipped = scale %a.grad, %by : f32[4]
    opt:
      %a.new = sgd %a, none, %a.clipped, %bad donates=[0] momentum=0.0 weight_decay=0.0 : f32[4/dp_shard]
    clip:
      %mean = wait %mean.start : f32[]
      return %mean, %norm
      carry %a = %a.new
      carry %b = %b.new
  )");
}

TEST_CASE("early_all_reduces: of several micro-batches the last one starts them") {
  expect_pass("early_all_reduces", with_two(kClipped), R"(
    graph mesh [dp_replicate=2, dp_shard=2] view local micro_batches=2
      %a = param name=a : f32[4/dp_shard]
      %b = param name=b : f32[4/dp_shard]
      %x = input name=x : f32[8] own(dp_replicate, dp_shard)
    bwd:
      %l = aten.sum %x : f32[]
      %b.g = aten.neg %x : f32[8]
      %b.rs.start = reduce_scatter.start %b.g axis=dp_shard dim=0 : async f32[4]
      %a.g = aten.neg %b.g : f32[8]
      %b.rs = wait %b.rs.start : f32[4]
      %b.acc = accumulate %b.rs : f32[4]
      %b.ar.start = all_reduce.start %b.acc axis=dp_replicate once=true : async f32[4]
      %a.rs.start = reduce_scatter.start %a.g axis=dp_shard dim=0 : async f32[4]
      %a.rs = wait %a.rs.start : f32[4]
      %a.acc = accumulate %a.rs : f32[4]
      %a.ar.start = all_reduce.start %a.acc axis=dp_replicate once=true : async f32[4]
    loss:
      %l.sum = accumulate %l : f32[]
    clip:
      %share = mul_scalar %l.sum value=0.25 : f32[]
      %mean.start = all_reduce.start %share axis=[dp_replicate, dp_shard] : async f32[]
      %b.ar = wait %b.ar.start : f32[4]
      %b.grad = gradient %b.ar param=b : f32[4]
      %a.ar = wait %a.ar.start : f32[4]
      %a.grad = gradient %a.ar param=a : f32[4]
      %sq = sum_squares [%a.grad, %b.grad] axis=dp_shard replicated=[false, false] : f64[2]
      %sq.all = all_reduce %sq axis=dp_shard : f64[2]
      %norm = grad_norm %sq.all : f64[]
      %by = clip_coefficient %norm max_norm=1.0 : f32[]
      %b.clipped = scale %b.grad, %by : f32[4]
      %bad = non_finite %norm : f32[]
    opt:
      %b.new = sgd %b, none, %b.clipped, %bad donates=[0] momentum=0.0 weight_decay=0.0 : f32[4/dp_shard]
    clip:
      %a.clipped = scale %a.grad, %by : f32[4]
    opt:
      %a.new = sgd %a, none, %a.clipped, %bad donates=[0] momentum=0.0 weight_decay=0.0 : f32[4/dp_shard]
    clip:
      %mean = wait %mean.start : f32[]
      return %mean, %norm
      carry %a = %a.new
      carry %b = %b.new
  )");
}

// DDP without a norm: nothing holds an update but its own gradient.
constexpr const char* kFree = R"(
    graph mesh [dp_replicate=2] view local
      %a = param name=a : f32[4]
      %b = param name=b : f32[4]
      %x = input name=x : f32[4] own(dp_replicate)
    bwd:
      %b.g = aten.neg %x : f32[4]
      %b.acc = accumulate %b.g : f32[4]
      %a.g = aten.neg %b.g : f32[4]
      %a.acc = accumulate %a.g : f32[4]
    clip:
      %a.ar = all_reduce %a.acc axis=dp_replicate : f32[4]
      %a.grad = gradient %a.ar param=a : f32[4]
      %b.ar = all_reduce %b.acc axis=dp_replicate : f32[4]
      %b.grad = gradient %b.ar param=b : f32[4]
      %sq = sum_squares [%a.grad, %b.grad] axis=dp_replicate replicated=[false, false] : f64[2]
      %sq.all = all_reduce %sq axis=dp_replicate : f64[2]
      %norm = grad_norm %sq.all : f64[]
      %never = full value=0.0 : f32[]
    opt:
      %a.new = sgd %a, none, %a.grad, %never donates=[0] momentum=0.0 weight_decay=0.0 : f32[4]
      %b.new = sgd %b, none, %b.grad, %never donates=[0] momentum=0.0 weight_decay=0.0 : f32[4]
      return %norm
      carry %a = %a.new
      carry %b = %b.new
  )";

TEST_CASE(
    "early_all_reduces: an update that no norm holds back follows its own wait, the norm starts before the last") {
  expect_pass("early_all_reduces", kFree, R"(
    graph mesh [dp_replicate=2] view local
      %a = param name=a : f32[4]
      %b = param name=b : f32[4]
      %x = input name=x : f32[4] own(dp_replicate)
    bwd:
      %b.g = aten.neg %x : f32[4]
      %b.acc = accumulate %b.g : f32[4]
      %b.ar.start = all_reduce.start %b.acc axis=dp_replicate : async f32[4]
      %a.g = aten.neg %b.g : f32[4]
      %a.acc = accumulate %a.g : f32[4]
      %a.ar.start = all_reduce.start %a.acc axis=dp_replicate : async f32[4]
    clip:
      %b.ar = wait %b.ar.start : f32[4]
      %b.grad = gradient %b.ar param=b : f32[4]
      %never = full value=0.0 : f32[]
    opt:
      %b.new = sgd %b, none, %b.grad, %never donates=[0] momentum=0.0 weight_decay=0.0 : f32[4]
    clip:
      %a.ar = wait %a.ar.start : f32[4]
      %a.grad = gradient %a.ar param=a : f32[4]
      %sq = sum_squares [%a.grad, %b.grad] axis=dp_replicate replicated=[false, false] : f64[2]
      %sq.all.start = all_reduce.start %sq axis=dp_replicate : async f64[2]
    opt:
      %a.new = sgd %a, none, %a.grad, %never donates=[0] momentum=0.0 weight_decay=0.0 : f32[4]
    clip:
      %sq.all = wait %sq.all.start : f64[2]
      %norm = grad_norm %sq.all : f64[]
      return %norm
      carry %a = %a.new
      carry %b = %b.new
  )");
}

TEST_CASE("early_all_reduces: what reads a parameter stays before the update that takes its buffer over") {
  expect_pass("early_all_reduces", R"(
    graph mesh [dp_replicate=2] view local
      %a = param name=a : f32[4]
      %b = param name=b : f32[4]
      %x = input name=x : f32[4] own(dp_replicate)
    bwd:
      %b.ar.start = all_reduce.start %x axis=dp_replicate : async f32[4]
      %a.ar.start = all_reduce.start %x axis=dp_replicate : async f32[4]
    clip:
      %b.ar = wait %b.ar.start : f32[4]
      %b.grad = gradient %b.ar param=b : f32[4]
      %a.ar = wait %a.ar.start : f32[4]
      %a.grad = gradient %a.ar param=a : f32[4]
      %size = aten.sum %b : f32[]
      %never = full value=0.0 : f32[]
    opt:
      %a.new = sgd %a, none, %a.grad, %never donates=[0] momentum=0.0 weight_decay=0.0 : f32[4]
      %b.new = sgd %b, none, %b.grad, %never donates=[0] momentum=0.0 weight_decay=0.0 : f32[4]
      return %size
      carry %a = %a.new
      carry %b = %b.new
  )",
              R"(
    graph mesh [dp_replicate=2] view local
      %a = param name=a : f32[4]
      %b = param name=b : f32[4]
      %x = input name=x : f32[4] own(dp_replicate)
    bwd:
      %b.ar.start = all_reduce.start %x axis=dp_replicate : async f32[4]
      %a.ar.start = all_reduce.start %x axis=dp_replicate : async f32[4]
    clip:
      %b.ar = wait %b.ar.start : f32[4]
      %b.grad = gradient %b.ar param=b : f32[4]
      %never = full value=0.0 : f32[]
      %size = aten.sum %b : f32[]
    opt:
      %b.new = sgd %b, none, %b.grad, %never donates=[0] momentum=0.0 weight_decay=0.0 : f32[4]
    clip:
      %a.ar = wait %a.ar.start : f32[4]
      %a.grad = gradient %a.ar param=a : f32[4]
    opt:
      %a.new = sgd %a, none, %a.grad, %never donates=[0] momentum=0.0 weight_decay=0.0 : f32[4]
      return %size
      carry %a = %a.new
      carry %b = %b.new
  )");
}

TEST_CASE("early_all_reduces: a graph without an optimizer stays as it is") {
  expect_unchanged("early_all_reduces", R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[4] own(dp_shard)
    loss:
      %l = aten.sum %x : f32[]
    clip:
      %mean = all_reduce %l axis=dp_shard : f32[]
      return %mean
  )");
}

}  // namespace
}  // namespace sfsdp::passes::early_all_reduces_test

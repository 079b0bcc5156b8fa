// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/data_parallel.h"

#include <doctest/doctest.h>

#include <cmath>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::data_parallel_test {
namespace {

// A captured step of a weight of 3 rows, which two ranks pad, and of a frozen one.
constexpr const char* kCaptured = R"(
  graph mesh [] view global
    %w = param name=w : f32[3, 2] at w
    %z = param name=z trainable=false : f32[3, 2] at z
    %x = input name=x : f32[3, 2]
  fwd:
    %a = aten.mul.Tensor %w, %x : f32[3, 2] at w
    %y = aten.mul.Tensor %a, %z : f32[3, 2] at z
  bwd:
    %g = aten.mul.Tensor %w, %y : f32[3, 2] at w
    %w.grad = gradient %g param=w : f32[3, 2] at w
    return %y
)";

std::string rewritten(int64_t zero_stage, const DeviceMesh& mesh, DataParallelMode mode, int64_t micro_batches = 2) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kCaptured));
  graph.micro_batches = micro_batches;
  parallel::apply_data_parallel(graph, data_parallel(mesh, {.mode = mode, .zero_stage = zero_stage}));
  CHECK(ir::verify(graph).empty());
  graph.micro_batches = 1;  // one header for all
  return ir::print(graph);
}

std::string fsdp(int64_t zero_stage) {
  return rewritten(zero_stage, init_device_mesh({{"dp_shard", 2}}), DataParallelMode::FullyShard);
}

TEST_CASE("ZeRO 0 and 1: gradients are reduced once, after the sum over micro-batches") {
  CHECK(fsdp(0) == testing::dedent(R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[3, 2] at w
      %z = param name=z trainable=false : f32[3, 2] at z
      %x = input name=x : f32[3, 2] own(dp_shard)
    fwd:
      %a = aten.mul.Tensor %w, %x : f32[3, 2] at w
      %y = aten.mul.Tensor %a, %z : f32[3, 2] at z
    bwd:
      %g = aten.mul.Tensor %w, %y : f32[3, 2] at w
      %w.grad.acc = accumulate %g : f32[3, 2] at w
    clip:
      %w.grad.ar = all_reduce %w.grad.acc axis=dp_shard : f32[3, 2] at w
      %w.grad = gradient %w.grad.ar param=w replicated=true : f32[3, 2] at w
      return %y
  )"));
  CHECK(fsdp(1) == testing::dedent(R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w rows=3 : f32[2/dp_shard~, 2] at w
      %z = param name=z trainable=false : f32[3, 2] at z
      %x = input name=x : f32[3, 2] own(dp_shard)
    fwd:
      %w.full = all_gather %w axis=dp_shard dim=0 : f32[4, 2] at w
      %w.unpad = narrow %w.full dim=0 length=3 start=0 : f32[3, 2] at w
      %a = aten.mul.Tensor %w.unpad, %x : f32[3, 2] at w
      %y = aten.mul.Tensor %a, %z : f32[3, 2] at z
    bwd:
      %g = aten.mul.Tensor %w.unpad, %y : f32[3, 2] at w
      %w.grad.pad = pad %g dim=0 size=4 : f32[4, 2] at w
      %w.grad.acc = accumulate %w.grad.pad : f32[4, 2] at w
      %w.grad.rs = reduce_scatter %w.grad.acc axis=dp_shard dim=0 once=true : f32[2, 2] at w
    clip:
      %w.grad = gradient %w.grad.rs param=w replicated=false : f32[2, 2] at w
      return %y
  )"));
}

TEST_CASE("ZeRO 2 and 3: each micro-batch reduces; 3 gathers again for backward") {
  CHECK(fsdp(2) == testing::dedent(R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w rows=3 : f32[2/dp_shard~, 2] at w
      %z = param name=z trainable=false : f32[3, 2] at z
      %x = input name=x : f32[3, 2] own(dp_shard)
    fwd:
      %w.full = all_gather %w axis=dp_shard dim=0 : f32[4, 2] at w
      %w.unpad = narrow %w.full dim=0 length=3 start=0 : f32[3, 2] at w
      %a = aten.mul.Tensor %w.unpad, %x : f32[3, 2] at w
      %y = aten.mul.Tensor %a, %z : f32[3, 2] at z
    bwd:
      %g = aten.mul.Tensor %w.unpad, %y : f32[3, 2] at w
      %w.grad.pad = pad %g dim=0 size=4 : f32[4, 2] at w
      %w.grad.rs = reduce_scatter %w.grad.pad axis=dp_shard dim=0 : f32[2, 2] at w
      %w.grad.acc = accumulate %w.grad.rs : f32[2, 2] at w
    clip:
      %w.grad = gradient %w.grad.acc param=w replicated=false : f32[2, 2] at w
      return %y
  )"));
  CHECK(fsdp(3) == testing::dedent(R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w rows=3 : f32[2/dp_shard~, 2] at w
      %z = param name=z rows=3 trainable=false : f32[2/dp_shard~, 2] at z
      %x = input name=x : f32[3, 2] own(dp_shard)
    fwd:
      %w.full = all_gather %w axis=dp_shard dim=0 : f32[4, 2] at w
      %w.unpad = narrow %w.full dim=0 length=3 start=0 : f32[3, 2] at w
      %a = aten.mul.Tensor %w.unpad, %x : f32[3, 2] at w
      %z.full = all_gather %z axis=dp_shard dim=0 : f32[4, 2] at z
      %z.unpad = narrow %z.full dim=0 length=3 start=0 : f32[3, 2] at z
      %y = aten.mul.Tensor %a, %z.unpad : f32[3, 2] at z
    bwd:
      %w.full_1 = all_gather %w axis=dp_shard dim=0 : f32[4, 2] at w
      %w.unpad_1 = narrow %w.full_1 dim=0 length=3 start=0 : f32[3, 2] at w
      %g = aten.mul.Tensor %w.unpad_1, %y : f32[3, 2] at w
      %w.grad.pad = pad %g dim=0 size=4 : f32[4, 2] at w
      %w.grad.rs = reduce_scatter %w.grad.pad axis=dp_shard dim=0 : f32[2, 2] at w
      %w.grad.acc = accumulate %w.grad.rs : f32[2, 2] at w
    clip:
      %w.grad = gradient %w.grad.acc param=w replicated=false : f32[2, 2] at w
      return %y
  )"));
}

TEST_CASE("ZeRO 1 below the world size: the shards' sums are all-reduced over the replicas") {
  const std::string text =
      rewritten(1, init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}), DataParallelMode::HybridShard);
  const size_t sum = text.find("= accumulate"), scatter = text.find("= reduce_scatter"),
               all = text.find("= all_reduce"), clip = text.find("clip:");
  CHECK(sum < scatter);
  CHECK(scatter < clip);
  CHECK(clip < all);
  CHECK(all != std::string::npos);
  CHECK(text.find("axis=dp_replicate") > all);
}

TEST_CASE("reduce_once: whole gradients add up in the dtype of their reduction, the last micro-batch reduces them") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kCaptured));
  graph.micro_batches = 2;
  const DeviceMesh mesh = init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}});
  parallel::apply_data_parallel(
      graph, data_parallel(mesh, {.mode = DataParallelMode::HybridShard,
                                  .mixed_precision = {.param_dtype = {}, .reduce_dtype = ir::DType::f64},
                                  .reduce_once = true}));
  CHECK(ir::verify(graph).empty());
  const std::string text = ir::print(graph);
  CHECK(text.substr(text.find("bwd:")) == testing::dedent(R"(
    bwd:
      %w.full_1 = all_gather %w axis=dp_shard dim=0 : f32[4, 2] at w
      %w.unpad_1 = narrow %w.full_1 dim=0 length=3 start=0 : f32[3, 2] at w
      %g = aten.mul.Tensor %w.unpad_1, %y : f32[3, 2] at w
      %w.grad.cast = cast %g : f64[3, 2] at w
      %w.grad.pad = pad %w.grad.cast dim=0 size=4 : f64[4, 2] at w
      %w.grad.acc = accumulate %w.grad.pad : f64[4, 2] at w
      %w.grad.rs = reduce_scatter %w.grad.acc axis=dp_shard dim=0 once=true : f64[2, 2] at w
    clip:
      %w.grad.ar = all_reduce %w.grad.rs axis=dp_replicate : f64[2, 2] at w
      %w.grad.stored = cast %w.grad.ar : f32[2, 2] at w
      %w.grad = gradient %w.grad.stored param=w replicated=false : f32[2, 2] at w
      return %y
  )"));
}

TEST_CASE("one micro-batch has nothing to add up") {
  for (const int64_t stage : {0, 1, 2, 3}) {
    const std::string text = rewritten(stage, init_device_mesh({{"dp_shard", 2}}), DataParallelMode::FullyShard, 1);
    CHECK(text.find("accumulate") == std::string::npos);
    CHECK((text.find("= reduce_scatter") != std::string::npos) == (stage > 0));
  }
}

TEST_CASE("shards of micro-batches add up in the dtype of what is stored") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kCaptured));
  graph.micro_batches = 3;
  const DeviceMesh mesh = init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}});
  const MixedPrecisionPolicy policy{.param_dtype = {}, .reduce_dtype = ir::DType::bf16};
  parallel::apply_data_parallel(
      graph, data_parallel(mesh, {.mode = DataParallelMode::HybridShard, .mixed_precision = policy}), {.factor = 0.75});
  CHECK(ir::verify(graph).empty());
  const std::string text = ir::print(graph);
  const size_t first = text.find("  %w.grad.cast");
  CHECK("bwd:\n" + text.substr(first, text.find("  return") - first) == testing::dedent(R"(
    bwd:
      %w.grad.cast = cast %g : bf16[3, 2] at w
      %w.grad.pad = pad %w.grad.cast dim=0 size=4 : bf16[4, 2] at w
      %w.grad.rs = reduce_scatter %w.grad.pad axis=dp_shard dim=0 : bf16[2, 2] at w
      %w.grad.stored = cast %w.grad.rs : f32[2, 2] at w
      %w.grad.acc = accumulate %w.grad.stored : f32[2, 2] at w
      %w.grad.sent = cast %w.grad.acc once=true : bf16[2, 2] at w
    clip:
      %w.grad.ar = all_reduce %w.grad.sent axis=dp_replicate : bf16[2, 2] at w
      %w.grad.stored_1 = cast %w.grad.ar : f32[2, 2] at w
      %w.grad.mean = mul_scalar %w.grad.stored_1 value=0.75 : f32[2, 2] at w
      %w.grad = gradient %w.grad.mean param=w replicated=false : f32[2, 2] at w
  )"));
}

TEST_CASE("the share of a mean is exact in half precision") {
  for (const int64_t parts : {1, 2, 3, 5, 6, 8, 24, 96}) {
    const auto [seed, rest] = parallel::share_of_mean(parts, true);
    CHECK(std::exp2(std::round(std::log2(seed))) == seed);
    CHECK(seed * rest * static_cast<double>(parts) == doctest::Approx(1).epsilon(1e-15));
    CHECK(rest <= 1);
    CHECK(rest > 0.5);
    CHECK(parallel::share_of_mean(parts, false).rest == 1);
  }
}

TEST_CASE("an unset mode is what the mesh has; a given one must fit it") {
  const auto mode = [](std::vector<MeshAxis> axes) {
    return data_parallel(init_device_mesh(std::move(axes))).options.mode;
  };
  CHECK(mode({{"dp_shard", 4}}) == DataParallelMode::FullyShard);
  CHECK(mode({{"dp_replicate", 1}, {"dp_shard", 4}}) == DataParallelMode::FullyShard);
  CHECK(mode({{"dp_replicate", 4}}) == DataParallelMode::Replicate);
  CHECK(mode({{"dp_replicate", 4}, {"dp_shard", 1}}) == DataParallelMode::Replicate);
  CHECK(mode({{"dp_replicate", 2}, {"dp_shard", 4}}) == DataParallelMode::HybridShard);
  CHECK(mode({}) == DataParallelMode::FullyShard);  // one rank: nothing is cut
  CHECK_THROWS_WITH_AS(data_parallel(init_device_mesh({{"dp_replicate", 2}}), {.mode = DataParallelMode::FullyShard}),
                       doctest::Contains("FullyShard on a mesh with dp_replicate = 2"), UserError);
}

TEST_CASE("options out of range are named as C++ has them") {
  const DeviceMesh mesh = init_device_mesh({{"dp_shard", 2}});
  CHECK_THROWS_WITH_AS(data_parallel(mesh, {.min_shard_numel = -1}),
                       doctest::Contains("DataParallelOptions::min_shard_numel = -1"), UserError);
  CHECK_THROWS_WITH_AS(data_parallel(mesh, {.mixed_precision = {.param_dtype = ir::DType::i64, .reduce_dtype = {}}}),
                       doctest::Contains("MixedPrecisionPolicy::param_dtype = i64"), UserError);
  CHECK_THROWS_WITH_AS(data_parallel(mesh, {.mixed_precision = {.param_dtype = {}, .reduce_dtype = ir::DType::i32}}),
                       doctest::Contains("MixedPrecisionPolicy::reduce_dtype = i32"), UserError);
}

TEST_CASE("an unknown ZeRO stage is named") {
  for (const int64_t stage : {-1, 4})
    CHECK_THROWS_WITH_AS(data_parallel(init_device_mesh({{"dp_shard", 2}}), {.zero_stage = stage}),
                         doctest::Contains("expected 0, 1, 2 or 3"), UserError);
}

// Before the sum over tp, that is: what is sent over dp_replicate with it is as wide.
TEST_CASE("a summand over a model axis is not rounded before it is summed") {
  const auto clip_of = [](int64_t micro_batches) {
    std::string captured = testing::dedent(kCaptured);
    const std::string gradient = "%g = aten.mul.Tensor %w, %y : f32[3, 2]";
    captured.replace(captured.find(gradient), gradient.size(), gradient + " sum(tp)");
    ir::Graph graph = ir::parse_or_throw(captured);
    graph.micro_batches = micro_batches;
    const MixedPrecisionPolicy policy{.param_dtype = {}, .reduce_dtype = ir::DType::bf16};
    const DeviceMesh mesh = init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 2}});
    parallel::apply_data_parallel(graph,
                                  data_parallel(mesh, {.mixed_precision = policy}, tensor_parallel({{"w", Shard(0)}})));
    CHECK(ir::verify(graph).empty());
    const std::string text = ir::print(graph);
    CHECK(text.find("bf16") == std::string::npos);
    return text.substr(text.find("clip:"), text.find("  return") - text.find("clip:"));
  };
  const std::string expected = R"(clip:
  %w.grad.ar = all_reduce %w.grad.MADE axis=[dp_replicate, tp] : f32[2, 2] at w
  %w.grad = gradient %w.grad.ar param=w replicated=false : f32[2, 2] at w
)";
  for (const auto& [micro_batches, made] : {std::pair<int64_t, const char*>{1, "rs"}, {3, "acc"}}) {
    std::string text = expected;
    CHECK(clip_of(micro_batches) == text.replace(text.find("MADE"), 4, made));
  }
}

}  // namespace
}  // namespace sfsdp::data_parallel_test

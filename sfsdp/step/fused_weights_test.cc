// SPDX-License-Identifier: BSD-3-Clause
// Matrices that make several blocks at once (q, k and v; gate and up), of which the axis tp cuts each, on ranks that are threads: equal
// to one eager process on the same global batch.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/block_collectives.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace fused_weights_test {

namespace nn = torch::nn;
using testing::Case, testing::Reference, testing::eager, testing::expect_parity;

const std::vector<TensorParallelRule> kGptRules = {
    {"*.c_attn", Shard(0, {.blocks = 3})}, {"*.c_fc", Shard(0)}, {"*.c_proj", Shard(1)}};
const TensorParallel kGpt = tensor_parallel(kGptRules),
                     kBySequence = tensor_parallel(kGptRules, {.sequence_parallel = true});

Batch words(int64_t k, int64_t first, int64_t count) { return testing::tokens(k, first, count); }

template <class Make>
void expect_gpt_trains(Make make, const std::vector<Case>& cases, int64_t steps) {
  const Reference reference = eager(
      make, testing::loss_of, [&](int64_t k) { return words(k, 0, testing::kGlobalBatch); }, steps);
  for (const Case& c : cases) {
    CAPTURE(c.rules.options.sequence_parallel);
    const auto program = expect_parity(make, testing::loss_of, words, testing::kGlobalBatch, c, reference);
    const auto variant = program->first();
    CHECK(plan::verify_layouts(variant->graph) == "");
  }
}

TEST_CASE("a GPT whose attention and FFN tp cuts trains as eager does, heads, biases and all") {
  const DeviceMesh two = init_device_mesh({{"tp", 2}}), four = init_device_mesh({{"tp", 4}}),
                   mixed = init_device_mesh({{"dp_shard", 2}, {"tp", 2}});
  expect_gpt_trains(testing::make_gpt,
                    {{two, kGpt},
                     {two, kBySequence},
                     {four, kGpt},
                     {four, kBySequence},
                     {mixed, kGpt, {}, 2},
                     {mixed, kBySequence, {}, 3},
                     {init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 2}}), kBySequence},
                     {mixed, kGpt, {.zero_stage = 1}, 2},
                     {init_device_mesh({{"cp", 2}, {"tp", 2}}), kGpt}},
                    6);
}

TEST_CASE("a GPT without biases, with rotary embedding and a head of its own, trains as eager does") {
  const auto make = [] {
    models::GptArgs args = testing::tiny_gpt();
    args.dim = 24;
    args.bias = args.tied = false;
    args.rope = true;
    return models::Gpt(args);
  };
  expect_gpt_trains(
      make, {{init_device_mesh({{"tp", 2}}), kBySequence}, {init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), kGpt}}, 20);
}

TEST_CASE("a GPT whose rule names no blocks trains as eager does: what c_attn makes is gathered") {
  const TensorParallel rules = tensor_parallel({{"*.c_attn", Shard(0)}, {"*.c_fc", Shard(0)}, {"*.c_proj", Shard(1)}});
  expect_gpt_trains(testing::make_gpt, {{init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), rules}}, 20);
}

std::map<std::string, std::string> collectives_of_gpt(const TensorParallel& rules) {
  const auto make = [] {
    models::GptArgs args = testing::tiny_gpt();
    args.n_layers = 3;
    return models::Gpt(args);
  };
  const auto program = compile_program(meta_init(make), testing::loss_of, testing::kAdamW, testing::tokens(0, 0, 4),
                                       data_parallel(init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), {}, rules), {});
  const auto variant = program->first();
  return testing::collectives_by_block(variant->graph, "tp");
}

using Counts = std::map<std::string, std::string>;

TEST_CASE("a block of GPT has 2 all_reduces over tp forward and 2 backward, and nothing else") {
  const std::string block = "2 bwd all_reduce, 2 fwd all_reduce";
  CHECK(collectives_of_gpt(kGpt) == Counts{{"h.0", block}, {"h.1", block}, {"h.2", block}});
}

// A block between others: gradients of norms and biases are added once a step, in no block (packed_sums_test.cc). The first block
// reads embeddings that are whole, the last one is read by a norm and a head that no rule cuts.
TEST_CASE("with sequence parallelism a block of GPT has 2 all_gathers and 2 reduce_scatters each way") {
  CHECK(collectives_of_gpt(kBySequence).at("h.1") ==
        "2 bwd all_gather, 2 bwd reduce_scatter, 2 fwd all_gather, 2 fwd reduce_scatter");
}

// ---- spellings

constexpr int64_t kRows = 24, kLength = 5, kDim = 12, kHeads = 4;

Batch rows(int64_t step, int64_t first, int64_t count) {
  const at::Tensor all =
      at::arange(kRows * kLength * kDim * 2, at::kFloat).add(7.0 * static_cast<double>(step)).mul(0.37).sin();
  const at::Tensor mine = all.view({kRows, kLength, 2 * kDim}).narrow(0, first, count);
  return {mine.narrow(2, 0, kDim).contiguous(), mine.narrow(2, kDim, kDim).contiguous()};
}
const auto kLoss = [](auto& model, const Batch& b) { return (model->forward(b[0]) - b[1]).square().mean(); };

// A linear layer, whose weight is [out, in], or [in, out] as that of transformers' Conv1D.
struct LayerImpl : nn::Module {
  LayerImpl(int64_t in, int64_t out, bool conv)
      : is_conv(conv),
        weight(register_parameter("weight", (conv ? torch::randn({in, out}) : torch::randn({out, in})) * 0.3)),
        bias(register_parameter("bias", torch::randn({out}) * 0.1)) {}
  at::Tensor forward(const at::Tensor& x) {
    if (!is_conv) return at::linear(x, weight, bias);
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = weight.size(1);
    return at::addmm(bias, x.reshape({-1, x.size(-1)}), weight).view(sizes);
  }
  bool is_conv;
  at::Tensor weight, bias;
};
TORCH_MODULE(Layer);

enum class Spelling { Chunk, Unbind, Select, Narrow, Sizes };
constexpr Spelling kSpellings[] = {Spelling::Chunk, Spelling::Unbind, Spelling::Select, Spelling::Narrow,
                                   Spelling::Sizes};

// [B, S, 3 D] as q, k and v, [B, H, S, E] each.
std::vector<at::Tensor> heads_of(const at::Tensor& qkv, Spelling spelling) {
  const int64_t B = qkv.size(0), S = qkv.size(1), D = qkv.size(2) / 3, E = D / kHeads;
  if (spelling == Spelling::Select) {
    const at::Tensor all = qkv.view({B, S, 3, kHeads, E}).permute({2, 0, 3, 1, 4});
    return {all[0], all[1], all[2]};
  }
  std::vector<at::Tensor> parts;
  if (spelling == Spelling::Unbind)
    for (const at::Tensor& part : qkv.view({B, S, 3, kHeads, E}).unbind(2)) parts.push_back(part.transpose(1, 2));
  if (spelling == Spelling::Chunk) parts = qkv.chunk(3, -1);
  if (spelling == Spelling::Sizes) parts = qkv.split_with_sizes({D, D, D}, -1);
  if (spelling == Spelling::Narrow)
    for (int64_t i = 0; i < 3; ++i) parts.push_back(qkv.narrow(-1, i * D, D));
  if (spelling != Spelling::Unbind)
    for (at::Tensor& part : parts) part = part.view({B, S, kHeads, E}).transpose(1, 2);
  return parts;
}

at::Tensor attention(const std::vector<at::Tensor>& qkv) {
  const at::Tensor out = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
  return out.transpose(1, 2).reshape({out.size(0), out.size(2), -1});
}

// Attention and a gated FFN, each of one matrix and another one.
struct FusedImpl : nn::Module {
  FusedImpl(Spelling s, bool conv)
      : spelling(s),
        qkv(register_module("qkv", Layer(kDim, 3 * kDim, conv))),
        out(register_module("out", Layer(kDim, kDim, conv))),
        w13(register_module("w13", Layer(kDim, 40, conv))),
        w2(register_module("w2", Layer(20, kDim, conv))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = x + out(attention(heads_of(qkv(x), spelling)));
    const std::vector<at::Tensor> gated = w13(h).chunk(2, -1);
    return h + w2(at::silu(gated[0]) * gated[1]);
  }
  Spelling spelling;
  Layer qkv, out, w13, w2;
};
TORCH_MODULE(Fused);

const std::vector<TensorParallelRule> kLinearRules = {
    {"qkv", Shard(0, {.blocks = 3})}, {"w13", Shard(0, {.blocks = 2})}, {"out|w2", Shard(1)}};
const std::vector<TensorParallelRule> kConvRules = {{"qkv.weight", Shard(1, {.blocks = 3})},
                                                    {"qkv.bias", Shard(0, {.blocks = 3})},
                                                    {"w13.weight", Shard(1, {.blocks = 2})},
                                                    {"w13.bias", Shard(0, {.blocks = 2})},
                                                    {"out.weight|w2.weight", Shard(0)}};

void expect_fused_trains(bool conv, Spelling spelling, bool by_sequence) {
  CAPTURE(static_cast<int>(spelling));
  CAPTURE(conv);
  const auto make = [spelling, conv] { return Fused(spelling, conv); };
  const Reference reference = eager(
      make, kLoss, [](int64_t k) { return rows(k, 0, kRows); }, 20);
  const TensorParallel tensor = tensor_parallel(conv ? kConvRules : kLinearRules, {.sequence_parallel = by_sequence});
  for (const Case& c : {Case{init_device_mesh({{"tp", 4}}), tensor},
                        Case{init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), tensor, {}, 2}}) {
    const auto program = expect_parity(make, kLoss, rows, kRows, c, reference);
    const auto variant = program->first();
    CHECK(plan::verify_layouts(variant->graph) == "");
    if (by_sequence) continue;
    for (const auto& op : variant->graph.ops()) {  // sums alone: nothing is gathered over tp, of activations or weights
      const auto axes = ir::is_collective(*op) ? ir::axes_of(*op) : std::nullopt;
      if (axes && std::ranges::find(*axes, "tp") != axes->end()) CHECK(ir::collective_kind(*op) == "all_reduce");
    }
  }
}

TEST_CASE("q, k and v of one matrix, gate and up of another, however they are taken apart, train as eager does") {
  for (const Spelling spelling : kSpellings) expect_fused_trains(false, spelling, false);
  expect_fused_trains(false, Spelling::Chunk, true);
}

TEST_CASE("weights of [in, out], whose blocks stand side by side in each row, train as eager does") {
  for (const Spelling spelling : {Spelling::Chunk, Spelling::Unbind}) expect_fused_trains(true, spelling, false);
}

TEST_CASE("a rank has its part of each block: of what is stored, loaded and gathered") {
  const auto make = [] { return Fused(Spelling::Chunk, false); };
  const auto program = compile_program(
      meta_init(make), kLoss, testing::kParityOptimizer, rows(0, 0, 12),
      data_parallel(init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), {}, tensor_parallel(kLinearRules)), {});
  const at::Tensor other = at::arange(3 * kDim * kDim, at::kFloat).view({3 * kDim, kDim});
  std::mutex mutex;
  std::map<std::string, int64_t> elements;
  testing::run_ranks(4, [&](comm::CommWorld& world) {
    Step step(program, &world);
    step.load_state_dict({{"qkv.weight", other}});
    const at::Tensor got = step.gather("qkv.weight"), bias = step.gather("w13.bias");
    const plan::Box box = step.box_of("qkv.weight");
    const at::Tensor mine = step.state_dict().at("qkv.weight");
    std::lock_guard lock(mutex);
    CHECK(at::equal(got, other));
    CHECK(bias.sizes() == at::IntArrayRef({40}));
    const int64_t at = world.rank() % 2 * (kDim / 2);
    CHECK((box.dims == std::vector<Chunk>{{0, 3}, {at, kDim / 2}, {0, kDim}}));
    CHECK((box.block_shape == std::vector<int64_t>{3, kDim, kDim}));
    const at::Tensor part = other.view({3, kDim, kDim}).narrow(1, at, kDim / 2).reshape({-1});
    CHECK(at::equal(mine.reshape({-1}), part.narrow(0, box.flat.offset, box.flat.length)));
    elements["qkv.weight"] += mine.numel();
  });
  CHECK(elements.at("qkv.weight") == 3 * kDim * kDim);
}

// Heads of keys are fewer than those of queries: the blocks are of several sizes.
struct GroupedImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const std::vector<at::Tensor> parts = qkv(x).split_with_sizes({kDim, kDim / 2, kDim / 2}, -1);
    return x + at::cat({parts[1], parts[2]}, -1) * parts[0];
  }
  nn::Linear qkv = register_module("qkv", nn::Linear(kDim, 2 * kDim));
};
TORCH_MODULE(Grouped);

TEST_CASE("blocks of several sizes are refused by name; without blocks they train as eager does") {
  const auto make = [] { return Grouped(); };
  const auto compile_with = [&](const Shard& cut) {
    return compile_program(meta_init(make), kLoss, testing::kParityOptimizer, rows(0, 0, kRows),
                           data_parallel(init_device_mesh({{"tp", 2}}), {}, tensor_parallel({{"qkv", cut}})), {});
  };
  CHECK_THROWS_WITH_AS(compile_with(Shard(0, {.blocks = 2})), doctest::Contains("takes 12 and 6 and 6 of the 24 of "),
                       UserError);
  const Reference reference = eager(
      make, kLoss, [](int64_t k) { return rows(k, 0, kRows); }, 20);
  expect_parity(make, kLoss, rows, kRows, {init_device_mesh({{"tp", 2}}), tensor_parallel({{"qkv", Shard(0)}})},
                reference);
}

}  // namespace fused_weights_test
}  // namespace sfsdp

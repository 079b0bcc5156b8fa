// SPDX-License-Identifier: BSD-3-Clause
// Models, meshes and options drawn at random: whatever the passes make of a step, it trains as one eager process does,
// and bit for bit as the same step without them; the plan at its addresses as the graph op by op.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <random>

#include "sfsdp/base/strings.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/plans_torch.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace random_models_test {

using testing::kAdamW, testing::kGlobalBatch, testing::loss_of, testing::tokens;

constexpr int64_t kSteps = 3;

class Draw {
 public:
  explicit Draw(uint64_t seed) : bits_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(bits_() % static_cast<uint64_t>(n)); }
  bool once_in(int64_t n) { return below(n) == 0; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(std::ssize(values))];
  }

 private:
  std::mt19937_64 bits_;
};

enum class Kind : uint8_t { Mlp, Gated, Attention, Mixer, Shared, GroupNorm, Pool, Scan };

struct NetArgs {
  int64_t dim = 8;
  std::vector<Kind> blocks;
  bool tied = false, frozen = false;
};

// reads_others: also blocks whose ops read other places than their own, or have no row.
NetArgs draw_net(Draw& draw, bool reads_others) {
  NetArgs args;
  args.dim = 6 + draw.below(9);
  const int64_t blocks = 1 + draw.below(4);
  for (int64_t i = 0; i < blocks; ++i)
    args.blocks.push_back(reads_others && draw.once_in(2)
                              ? draw.one_of({Kind::GroupNorm, Kind::Pool, Kind::Scan})
                              : draw.one_of({Kind::Mlp, Kind::Gated, Kind::Attention, Kind::Mixer, Kind::Shared}));
  args.tied = draw.once_in(4);
  args.frozen = draw.once_in(4);
  return args;
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(Kind k, int64_t dim, const torch::nn::Linear& shared)
      : kind(k), norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})))), out(shared) {
    constexpr int64_t kLength = 12;  // of the sequences
    const int64_t inner = kind == Kind::Attention ? dim : 2 * dim + 1;
    const auto linear = [&](const char* name, int64_t from, int64_t to) {
      return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false)));
    };
    if (kind == Kind::Mixer) out = linear("out", kLength, kLength);
    if (kind == Kind::GroupNorm)
      groups = register_module("groups", torch::nn::GroupNorm(torch::nn::GroupNormOptions(3, kLength)));
    if (kind == Kind::Mixer || kind == Kind::Shared || kind >= Kind::GroupNorm) return;
    out = linear("out", inner, dim);
    a = linear("a", dim, inner);
    if (kind != Kind::Mlp) b = linear("b", dim, inner);
    if (kind == Kind::Attention) c = linear("c", dim, inner);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = norm(x);
    switch (kind) {
      case Kind::Mlp: return x + out(at::gelu(a(h)));
      case Kind::Gated: return x + out(at::silu(a(h)) * b(h));
      case Kind::Attention: {
        const at::Tensor q = a(h).unsqueeze(1), k = b(h).unsqueeze(1), v = c(h).unsqueeze(1);
        return x + out(at::scaled_dot_product_attention(q, k, v, {}, 0.0, true).squeeze(1));
      }
      case Kind::Mixer: return x + out(h.transpose(1, 2)).transpose(1, 2);
      case Kind::GroupNorm: return x + out(groups(h));  // positions as channels
      case Kind::Pool: return x + out(at::avg_pool1d(h.transpose(1, 2), 3, 1, 1).transpose(1, 2));
      case Kind::Scan: return x + out(at::cumprod(at::sigmoid(h) + 0.5, 2));
      case Kind::Shared: break;
    }
    return x + out(at::tanh(h));
  }
  Kind kind;
  torch::nn::LayerNorm norm;
  torch::nn::GroupNorm groups = nullptr;
  torch::nn::Linear out, a = nullptr, b = nullptr, c = nullptr;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const NetArgs& args)
      : embedding(register_module("embedding", torch::nn::Embedding(29, args.dim))),
        shared(register_module("shared", torch::nn::Linear(args.dim, args.dim))) {
    auto layers = register_module("layers", std::make_shared<torch::nn::Module>());
    for (size_t i = 0; i < args.blocks.size(); ++i)
      blocks.push_back(layers->register_module(std::to_string(i), Block(args.blocks[i], args.dim, shared)));
    scale = register_parameter("scale", torch::ones({}));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({args.dim})));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(args.dim, 29).bias(false)));
    if (args.tied) head->weight = embedding->weight;
    if (args.frozen) blocks[0]->out->weight.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embedding(ids) * scale;
    for (Block& block : blocks) x = block(x);
    return head(norm(x));
  }
  torch::nn::Embedding embedding;
  torch::nn::Linear shared, head = nullptr;
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm = nullptr;
  at::Tensor scale;
};
TORCH_MODULE(Net);

struct Case {
  DeviceMesh mesh;
  DataParallelOptions options;
  int64_t micro_batches = 1;
  passes::PipelineOptions plain, pipeline;
  tune::TuneOptions plain_tune, tune;
};

Case draw_case(Draw& draw) {
  Case c;
  const auto [replicas, shards] = draw.one_of<std::pair<int64_t, int64_t>>(
      {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 1}, {3, 1}, {2, 2}, {2, 3}, {3, 2}});
  c.mesh = init_device_mesh({{"dp_replicate", replicas}, {"dp_shard", shards}});
  c.micro_batches = 1 + draw.below(2);
  c.options.mode = replicas == 1 ? DataParallelMode::FullyShard
                   : shards == 1 ? DataParallelMode::Replicate
                                 : DataParallelMode::HybridShard;
  c.options.zero_stage = draw.once_in(2) ? 3 : draw.below(4);
  c.options.reshard_after_forward = !draw.once_in(3);
  c.options.reduce_once = draw.once_in(3);
  c.options.min_shard_numel = draw.one_of<int64_t>({0, 0, 60});
  c.options.layout = draw.once_in(3) ? ParameterLayout::Dim0 : ParameterLayout::Flat;
  c.options.units = draw.one_of<std::string>({"", "", "layers.*.*", "[layers, norm], embedding"});

  const bool flat = c.options.layout == ParameterLayout::Flat;
  passes::PipelineOptions& p = c.pipeline;
  c.tune.machine = testing::source_dir() + "/machines/dgx_h100.toml";
  if (draw.once_in(4)) p.loss_chunks = 2;
  if (flat && (c.options.zero_stage == 0 || c.options.zero_stage == 3))
    c.tune.wrap = draw.one_of<tune::Wrap>({tune::Wrap::Manual, tune::Wrap::Auto, tune::Wrap::Search});
  c.tune.choose_reshard = c.tune.wrap != tune::Wrap::Manual;
  c.plain = p;
  c.plain_tune = c.tune;
  c.plain.disable = passes::overlap_passes();

  if (draw.once_in(4)) p.disable = passes::overlap_passes();
  const auto sides = {passes::Side::Before, passes::Side::After};
  p.prefetch.depth = draw.below(4);
  p.prefetch.max_bytes = draw.one_of<int64_t>({0, 1500});
  p.prefetch.forward = draw.one_of<passes::Side>(sides);
  p.prefetch.backward = draw.one_of<passes::Side>(sides);
  p.sink.depth = draw.below(4);
  p.sink.next = draw.one_of<passes::Side>(sides);
  p.reshard.keep_last = draw.once_in(2);
  const int64_t remat = draw.below(5);  // the last: chosen by cost
  c.tune.choose_remat = remat == 4;
  if (remat < 4) p.remat.mode = static_cast<passes::RematMode>(remat);
  p.remat.memory_budget = 0.5;
  if (c.tune.wrap == tune::Wrap::Manual) {
    for (const char* name : {"fold_views", "merge_duplicates"}) c.plain.disable.emplace_back(name);
  } else {  // which units are best depends on it
    c.plain.remat = p.remat;
    c.plain_tune.choose_remat = c.tune.choose_remat;
  }
  p.checks = passes::Checks::EveryPass;
  return c;
}

TEST_CASE("random models on random meshes with random options train as one eager process does") {
  for (uint64_t seed = 0; seed < 80; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const NetArgs args = draw_net(draw, seed >= 60);
    const auto make = [&] { return Net(args); };
    const Case c = draw_case(draw);
    CAPTURE(to_string(c.mesh));
    CAPTURE(c.options.zero_stage);
    CAPTURE(static_cast<int>(c.tune.wrap));
    CAPTURE(passes::to_string(c.pipeline.remat.mode));

    const int64_t ranks = c.mesh.world_size(), rows = kGlobalBatch / ranks / c.micro_batches;
    const auto train = [&](const passes::PipelineOptions& pipeline, const tune::TuneOptions& tune,
                           ExecutorKind executor) {
      CompileOptions options;
      options.executor = executor;
      options.max_norm = 1.0;
      options.micro_batches = c.micro_batches;
      options.pipeline = pipeline;
      options.tune = tune;
      options.notify = [](const std::string&) {};
      const auto program = compile_program(meta_init(make), loss_of, kAdamW, tokens(0, 0, rows),
                                           data_parallel(c.mesh, c.options), options);
      // A batch shape of one row runs in the plan machine, as a small one does.
      CHECK(testing::run_on_machine(program->training(tokens(0, 0, 1)), {.first_schedule = seed, .schedules = 1}) ==
            "");
      return testing::train_on_ranks(program, kSteps, [&](int64_t step, int64_t rank) {
        return testing::micro_batches_of(step, rank, ranks, c.micro_batches);
      });
    };
    const auto got = train(c.pipeline, c.tune, ExecutorKind::Planned),
               plain = train(c.plain, c.plain_tune, ExecutorKind::Reference);
    testing::expect_same_bits(got, plain);

    Step one = compile(meta_init(make), loss_of, kAdamW, tokens(0, 0, kGlobalBatch),
                       data_parallel(init_device_mesh({{"dp_shard", 1}})));
    Net eager = make();
    testing::copy_weights(one, *eager);
    testing::EagerTrainer trainer(eager.ptr(), kAdamW, 1.0);
    for (int64_t k = 0; k < kSteps; ++k) {
      const StepResult expected = trainer.step([&] { return loss_of(eager, tokens(k, 0, kGlobalBatch)); });
      CHECK(std::abs(got.results[k].loss - expected.loss) <= 1e-6 * expected.loss);
      CHECK(std::abs(got.results[k].grad_norm - expected.grad_norm) <= 5e-6 * expected.grad_norm);
    }
    for (const auto& [name, value] : trainer.state()) {
      CAPTURE(name);
      CHECK((got.state.at(name) - value).abs().max().item<double>() <= 1e-5);
    }
  }
}

}  // namespace random_models_test
}  // namespace sfsdp

// SPDX-License-Identifier: BSD-3-Clause
// A captured step on one rank equals eager LibTorch bit for bit; what compile takes over, and refuses.
#include "sfsdp/step/step.h"

#include <doctest/doctest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <chrono>
#include <cmath>
#include <mutex>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/models/deepseek_v3/deepseek_v3.h"
#include "sfsdp/models/gpt/gpt.h"
#include "sfsdp/models/llama3/llama3.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"

namespace sfsdp {
namespace step_test {

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t hidden = 16, double dropout = 0.0)
      : up(register_module("up", torch::nn::Linear(8, hidden))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        down(register_module("down", torch::nn::Linear(hidden, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return down(drop(torch::relu(up(x)))); }
  torch::nn::Linear up;
  torch::nn::Dropout drop;
  torch::nn::Linear down;
};
TORCH_MODULE(Mlp);

template <class Model>
at::Tensor classification_loss(Model& model, const Batch& batch) {
  return torch::nn::functional::cross_entropy(model->forward(batch[0]).flatten(0, -2), batch[1].flatten());
}

Batch classification_batch(int64_t rows, uint64_t seed, std::vector<int64_t> features = {8}, int64_t classes = 4) {
  torch::manual_seed(seed);
  features.insert(features.begin(), rows);
  return {torch::randn(features), torch::randint(classes, {rows}, torch::kLong)};
}

struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl()
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 6, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(6))),
        head(register_module("head", torch::nn::Linear(6 * 4 * 4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return head(torch::max_pool2d(torch::relu(norm(conv(x))), 2).flatten(1)); }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
  torch::nn::Linear head;
};
TORCH_MODULE(ConvNet);

// One block used twice, input and output embedding tied, one frozen and one unused parameter.
struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(11, 8))),
        block(register_module("block", torch::nn::Linear(8, 8))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})))),
        frozen(register_module("frozen", torch::nn::Linear(8, 8))),
        unused(register_parameter("unused", torch::ones({3}))),
        output(register_parameter("output", embedding->weight)) {
    for (auto& p : frozen->parameters()) p.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embedding(ids);
    x = x + torch::gelu(block(x));
    x = x + torch::gelu(block(x));
    return torch::linear(norm(frozen(x)), output);
  }
  torch::nn::Embedding embedding;
  torch::nn::Linear block;
  torch::nn::LayerNorm norm;
  torch::nn::Linear frozen;
  at::Tensor unused, output;
};
TORCH_MODULE(Tied);

// What is trained with; eager gets the numbers of each parameter as `numbers_of` has them.
struct Update {
  Optimizer optimizer = AdamW{.lr = 1e-2, .weight_decay = 0.1};
  std::function<AdamW(const std::string& name)> numbers_of = {};
};

template <class MakeModel, class MakeBatch>
void expect_equals_eager(MakeModel make_model, MakeBatch make_batch, ParameterLayout layout,
                         const Update& update = {}) {
  CAPTURE(static_cast<int>(layout));
  torch::manual_seed(1);
  auto model = make_model();
  torch::manual_seed(1);
  auto eager_model = make_model();
  const CompileOptions options = {.max_norm = 1.0, .rng = exec::Rng::Eager};
  const auto loss = [](auto& m, const Batch& b) { return classification_loss(m, b); };
  testing::EagerTrainer eager(eager_model.ptr(), {.lr = 1e-2, .weight_decay = 0.1}, options.max_norm);
  eager.numbers_of = update.numbers_of;
  eager.decoupled = std::holds_alternative<AdamW>(update.optimizer);
  Step step = compile(model, loss, update.optimizer, make_batch(0),
                      data_parallel(init_device_mesh({{"dp_shard", 1}}), {.layout = layout}), nullptr, options);
  // LibTorch's AdamW rounds the last elements of a buffer, which miss its vectors, otherwise than the rest; in a bucket
  // other elements are the last.
  const double last_bit = layout == ParameterLayout::Dim0 ? 0 : 1e-6;
  for (uint64_t k = 0; k < 5; ++k) {
    const Batch batch = make_batch(k + 1);
    torch::manual_seed(100 + k);
    const StepResult expected = eager.step([&] { return loss(eager_model, batch); });
    torch::manual_seed(100 + k);
    std::map<std::string, at::Tensor> gradients;
    size_t compared = 0;
    step.executor(batch)->on_op = [&](const ir::Op& op, const std::vector<at::Tensor>& results) {
      if (op.is("gradient")) gradients[op.attr<std::string>("param")] = results[0].clone();
    };
    const StepResult got = step(batch);
    for (const StoredTensor& t : step.program().tensors()) {
      const auto expected_gradient = eager.gradients.find(t.name);
      if (expected_gradient == eager.gradients.end()) continue;
      const at::Tensor& value = expected_gradient->second;
      const at::Tensor part = gradients.at(t.buffer).view({-1}).narrow(0, t.offset, value.numel());
      if (layout == ParameterLayout::Dim0) CHECK(at::equal(part.view(value.sizes()), value));
      ++compared;
    }
    CHECK(compared == eager.gradients.size());
    CHECK(std::abs(got.loss - expected.loss) <= last_bit * expected.loss);
    CHECK(std::abs(got.grad_norm - expected.grad_norm) <= last_bit * expected.grad_norm);
    const auto state = step.state_dict();
    for (const auto& [name, value] : eager.state()) {
      CAPTURE(name);
      CAPTURE(k);
      REQUIRE(state.contains(name));
      const at::Tensor error = (state.at(name) - value).abs();
      CHECK(at::max(error).item().toDouble() <= last_bit * at::max(value.abs()).item().toDouble());
    }
  }
}

template <class MakeModel, class MakeBatch>
void expect_equals_eager(MakeModel make_model, MakeBatch make_batch) {
  expect_equals_eager(make_model, make_batch, ParameterLayout::Flat);
  expect_equals_eager(make_model, make_batch, ParameterLayout::Dim0);
}

TEST_CASE("a captured MLP equals eager bit for bit over 5 steps") {
  expect_equals_eager([] { return Mlp(16); }, [](uint64_t k) { return classification_batch(6, k); });
}

TEST_CASE("dropout draws what eager draws when rng is eager") {
  expect_equals_eager([] { return Mlp(16, 0.3); }, [](uint64_t k) { return classification_batch(6, k); });
}

TEST_CASE("a convolutional net with batch norm equals eager, running statistics too") {
  // The gradient of a bias in front of batch norm is rounding error, of which Adam makes whole steps: Dim0 only, whose
  // AdamW has the very bits.
  expect_equals_eager([] { return ConvNet(); },
                      [](uint64_t k) {
                        return classification_batch(5, k, {2, 8, 8});
                      },
                      ParameterLayout::Dim0);
}

Batch tied_batch(uint64_t seed) {
  torch::manual_seed(seed);
  return {torch::randint(11, {7}, torch::kLong), torch::randint(11, {7}, torch::kLong)};
}

TEST_CASE("tied, frozen, unused and twice-used parameters equal eager") {
  expect_equals_eager([] { return Tied(); }, tied_batch);
}

TEST_CASE("parameter groups and Adam equal LibTorch's update with the numbers of each parameter, bit for bit") {
  const std::vector<ParamGroup> groups = {{"*.bias", 0.0, {}}, {"norm.*", 0.0, 0.25}, {"outpu?", {}, 0.5}};
  const auto numbers_of = [](const std::string& name) {
    AdamW adamw{.lr = 1e-2, .weight_decay = 0.1};
    const bool norm = name == "norm.weight" || name == "norm.bias";
    if (norm || name == "block.bias") adamw.weight_decay = 0;
    adamw.lr *= norm ? 0.25 : name == "output" ? 0.5 : 1;
    return adamw;
  };
  for (const Optimizer& optimizer : {Optimizer(AdamW{.lr = 1e-2, .weight_decay = 0.1, .groups = groups}),
                                     Optimizer(Adam{.lr = 1e-2, .weight_decay = 0.1, .groups = groups})})
    for (const ParameterLayout layout : {ParameterLayout::Flat, ParameterLayout::Dim0})
      expect_equals_eager([] { return Tied(); }, tied_batch, layout, {optimizer, numbers_of});
}

Batch token_batch(uint64_t seed) {
  torch::manual_seed(seed);
  return {torch::randint(23, {3, 9}, torch::kLong), torch::randint(23, {3, 9}, torch::kLong)};
}

TEST_CASE("Llama and GPT equal eager bit for bit") {
  models::Llama3Args llama;
  llama.dim = 24;
  llama.n_layers = 2;
  llama.n_heads = 4;
  llama.n_kv_heads = 2;
  llama.vocab_size = 23;
  llama.hidden_dim = 20;
  expect_equals_eager([&] { return models::Llama3(llama); }, token_batch);
  llama.tied = llama.qkv_bias = llama.qk_norm = true;
  expect_equals_eager([&] { return models::Llama3(llama); }, token_batch);
  models::GptArgs gpt{.dim = 24, .n_layers = 2, .n_heads = 4, .vocab_size = 23, .max_positions = 12};
  expect_equals_eager([&] { return models::Gpt(gpt); }, token_batch);
  gpt.tied = false;
  expect_equals_eager([&] { return models::Gpt(gpt); }, token_batch);
  gpt.rope = true;
  gpt.bias = false;
  expect_equals_eager([&] { return models::Gpt(gpt); }, token_batch);
}

TEST_CASE("DeepSeek-V3 equals eager bit for bit, the counts of its experts' tokens too") {
  models::DeepSeekV3Args args;
  args.dim = 24;
  args.inter_dim = 40;
  args.moe_inter_dim = 16;
  args.n_layers = 2;
  args.n_heads = 3;
  args.vocab_size = 23;
  args.q_lora_rank = 12;
  args.kv_lora_rank = 10;
  args.qk_nope_head_dim = 6;
  args.qk_rope_head_dim = 4;
  args.v_head_dim = 5;
  args.score_func = models::RouterScore::Sigmoid;
  args.route_norm = true;
  args.n_expert_groups = 4;
  args.n_limited_groups = 2;
  args.load_balance_coeff = 1e-3;
  expect_equals_eager([&] { return models::DeepSeekV3(args); }, token_batch);
}

// Eager: each linear layer reads its float32 parameters cast to the compute dtype, so gradients are made in it.
TEST_CASE("mixed precision in bfloat16 and float16 equals eager LibTorch with float32 master weights") {
  std::vector<Batch> batches;
  for (uint64_t k = 0; k < 4; ++k) batches.push_back(classification_batch(12, k));
  const AdamW adamw{.lr = 0.02, .eps = 1e-2};  // a smaller one makes whole steps of the rounding of small gradients
  const auto mlp = [] {
    torch::manual_seed(3);
    return Mlp();
  };
  const auto loss = [](Mlp& m, const Batch& b) {
    return at::cross_entropy_loss(m->forward(b[0]).to(at::kFloat), b[1]);
  };
  for (const auto& [dtype, half, tolerance] :
       {std::tuple(ir::DType::bf16, at::kBFloat16, 0x1p-8), std::tuple(ir::DType::f16, at::kHalf, 0x1p-11)}) {
    CAPTURE(ir::to_string(dtype));
    const auto linear = [half = half](const at::Tensor& x, torch::nn::Linear& l) {
      return at::linear(x, l->weight.to(half), l->bias.to(half));
    };
    Mlp eager = mlp();
    testing::EagerTrainer trainer(eager.ptr(), adamw, 0.5);
    std::vector<StepResult> expected;
    for (const Batch& b : batches)
      expected.push_back(trainer.step([&, half = half] {
        const at::Tensor out = linear(at::relu(linear(b[0].to(half), eager->up)), eager->down);
        return at::cross_entropy_loss(out.to(at::kFloat), b[1]);
      }));
    for (const int64_t world : {1, 2, 3})
      for (const ir::DType reduce_dtype : {ir::DType::f32, dtype}) {
        CAPTURE(world);
        CAPTURE(ir::to_string(reduce_dtype));
        const int64_t rows = 12 / world;
        const auto part = [&](size_t step, int64_t rank) {
          return Batch{batches[step][0].narrow(0, rank * rows, rows), batches[step][1].narrow(0, rank * rows, rows)};
        };
        const Strategy strategy =
            data_parallel(init_device_mesh({{"dp_shard", world}}), {.mixed_precision = {dtype, reduce_dtype}});
        const auto program = compile_program(mlp(), loss, adamw, part(0, 0), strategy, {.max_norm = 0.5});
        const auto got = testing::train_on_ranks(program, 4, [&](int64_t step, int64_t rank) {
          return std::vector<Batch>{part(static_cast<size_t>(step), rank)};
        });
        // One rank rounds as eager does; several add up their shares in another order, in half precision if asked to.
        const double most = world == 1 ? 1e-6 : tolerance;
        for (size_t k = 0; k < expected.size(); ++k) {
          CHECK(got.results[k].loss == doctest::Approx(expected[k].loss).epsilon(most));
          CHECK(got.results[k].grad_norm == doctest::Approx(expected[k].grad_norm).epsilon(2 * most));
        }
        for (const auto& [name, value] : trainer.state()) {
          CAPTURE(name);
          CHECK((got.state.at(name).scalar_type() == at::kFloat));
          CHECK((got.state.at(name) - value).abs().max().item<double>() <= 4 * most);
        }
      }
  }
}

Mlp meta_mlp() {
  return meta_init([] { return Mlp(); });
}
Strategy one_rank() { return data_parallel(init_device_mesh({{"dp_shard", 1}})); }

TEST_CASE("two programs on one module are refused: its values were taken; another module gets them by state_dict") {
  for (Mlp model : {Mlp(), meta_mlp()}) {
    Step first = compile(model, classification_loss<Mlp>, AdamW{.lr = 0.1}, classification_batch(12, 0), one_rank());
    first(classification_batch(12, 0));
    CHECK_THROWS_WITH_AS(compile(model, classification_loss<Mlp>, AdamW{}, classification_batch(12, 0), one_rank()),
                         doctest::Contains("the values of up.weight are gone: an earlier compile has taken them over"),
                         UserError);
    Step second = compile(meta_mlp(), classification_loss<Mlp>, AdamW{.lr = 0.1}, classification_batch(12, 0),
                          one_rank(), nullptr, {.seed = 9});
    second.load_state_dict(first.state_dict());
    CHECK(second(classification_batch(12, 1)).loss == first(classification_batch(12, 1)).loss);
  }
}

TEST_CASE("what another module holds is a constant of the graph; one that is compiled has nothing to read") {
  Mlp other;
  const auto distil = [&](Mlp& m, const Batch& b) { return (m->forward(b[0]) - other->forward(b[0])).square().mean(); };
  auto program = compile_program(meta_mlp(), distil, AdamW{}, classification_batch(12, 0), one_rank());
  Step step(program, nullptr);
  const double before = step.eval(classification_batch(12, 0));
  {
    at::NoGradGuard no_grad;
    other->down->bias.add_(1);
  }
  CHECK(step.eval(classification_batch(12, 0)) == before);
  CHECK_THROWS_WITH_AS(program->check_recapture(classification_batch(12, 0)), doctest::Contains("other values"),
                       UserError);
  const Step owner = compile(other, classification_loss<Mlp>, AdamW{}, classification_batch(12, 0), one_rank());
  CHECK_THROWS_WITH_AS(compile(meta_mlp(), distil, AdamW{}, classification_batch(12, 0), one_rank()),
                       doctest::Contains("a tensor of another compiled module of shape"), UserError);
}

TEST_CASE("options out of range are refused as C++ names them") {
  const auto refuse = [](Optimizer optimizer, const CompileOptions& options, const std::string& text) {
    CHECK_THROWS_WITH_AS(compile(meta_mlp(), classification_loss<Mlp>, optimizer, classification_batch(3, 0),
                                 one_rank(), nullptr, options),
                         doctest::Contains(text.c_str()), UserError);
  };
  refuse(AdamW{.lr = -1, .beta1 = 2}, {}, "AdamW::lr = -1");
  refuse(SGD{.momentum = 1}, {}, "SGD::momentum = 1");
  refuse(SGD{}, {.max_norm = -1}, "CompileOptions::max_norm = -1");
  refuse(SGD{}, {.max_norm = std::nan("")}, "CompileOptions::max_norm = nan");
  refuse(SGD{}, {.micro_batches = 0}, "CompileOptions::micro_batches = 0");
  CompileOptions chunks;
  chunks.pipeline.loss_chunks = -2;
  refuse(SGD{}, chunks, "CompileOptions::pipeline.loss_chunks = -2");
  CHECK_THROWS_WITH_AS(compile_program(meta_mlp(), classification_loss<Mlp>, SGD{}, classification_batch(3, 0),
                                       data_parallel(init_device_mesh({{"dp_shard", 2}})), {.rng = exec::Rng::Eager}),
                       doctest::Contains("rng = Eager on 2 ranks"), UserError);
  CompileOptions again{.rng = exec::Rng::Eager};
  again.pipeline.remat.mode = passes::RematMode::Full;
  refuse(SGD{}, again, "CompileOptions::rng = Eager with pipeline.remat");
  CompileOptions memory;
  for (const double gib : {-1.0, std::nan("")}) {
    memory.tune.memory_gib = gib;
    refuse(SGD{}, memory, concat("CompileOptions::tune.memory_gib = ", gib));
  }
  Step step = compile(meta_mlp(), classification_loss<Mlp>, AdamW{}, classification_batch(3, 0), one_rank());
  step.lr = std::nan("");
  CHECK_THROWS_WITH_AS(step(classification_batch(3, 0)), doctest::Contains("Step::lr = nan"), UserError);
}

TEST_CASE("calling the module after compile says where its values are") {
  Mlp real, meta = meta_mlp();
  for (Mlp model : {real, meta}) {
    Step step = compile(model, classification_loss<Mlp>, AdamW{}, classification_batch(12, 0), one_rank());
    for (int64_t rows : {12, 3}) {  // also after a second trace
      step(classification_batch(rows, 0));
      CHECK_THROWS_WITH_AS(model->forward(at::ones({2, 8})), doctest::Contains("step.gather(path)"), UserError);
      CHECK_THROWS_WITH_AS(model->up->weight.sum(), doctest::Contains("step.state_dict()"), UserError);
      CHECK(model->up->weight.sizes() == at::IntArrayRef({16, 8}));
      CHECK(model->up->weight.requires_grad());
    }
  }
}

struct ScaleImpl : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", torch::full({4}, 0.5));
};
TORCH_MODULE(Scale);

TEST_CASE("counts of a loss are added exactly, whatever their dtype, over ranks and micro-batches") {
  constexpr int64_t kMicroBatches = 5;
  for (const auto& [dtype, count] : std::vector<std::pair<at::ScalarType, int64_t>>{{at::kByte, 101},
                                                                                    {at::kChar, 101},
                                                                                    {at::kBool, 1},
                                                                                    {at::kHalf, 60000},
                                                                                    {at::kBFloat16, 255},
                                                                                    {at::kFloat, 16777213},
                                                                                    {at::kLong, 101}}) {
    CAPTURE(dtype);
    const auto loss = [dtype = dtype](Scale& m, const Batch& b) {
      return SumCount{m->weight.to(at::kDouble).sum() * b[0].sum(), b[1].to(dtype)};  // a count of shape [1]
    };
    const Batch part = {at::ones({1}, at::kDouble), at::full({1}, count, at::kLong)};
    for (int64_t world : {1, 2}) {
      auto program =
          compile_program(meta_init([] { return Scale(); }), loss, SGD{.lr = 0}, part,
                          data_parallel(init_device_mesh({{"dp_shard", world}})), {.micro_batches = kMicroBatches});
      const testing::Trained trained = testing::train_on_ranks(
          program, 1, [&](int64_t, int64_t) { return std::vector<Batch>(kMicroBatches, part); });
      CHECK(trained.results[0].loss == doctest::Approx(4 * 0.5 / static_cast<double>(count)).epsilon(1e-14));
    }
  }
}

// By hand: weights of 0.5 × 4 make 2 of a batch of 1; rank r has r + 1 and r + 2 in its two micro-batches, counts of 2.
TEST_CASE("own_loss is that of a rank's own samples, seconds are all of a run's") {
  const auto batches_of = [](int rank) {
    std::vector<Batch> batches;
    for (const int value : {rank + 1, rank + 2})
      batches.push_back({at::full({1}, value, at::kDouble), at::full({1}, 2)});
    return batches;
  };
  for (const bool counted : {false, true})
    for (const int64_t ranks : {1, 2}) {
      const auto mesh = data_parallel(init_device_mesh({{"dp_shard", ranks}}));
      const auto mean = [](Scale& m, const Batch& b) { return m->weight.to(at::kDouble).sum() * b[0].sum(); };
      const auto sum = [&](Scale& m, const Batch& b) { return SumCount{mean(m, b), b[1]}; };
      const auto make = meta_init([] { return Scale(); });
      const CompileOptions options = {.micro_batches = 2};
      auto program = counted ? compile_program(make, sum, SGD{.lr = 0}, batches_of(0)[0], mesh, options)
                             : compile_program(make, mean, SGD{.lr = 0}, batches_of(0)[0], mesh, options);
      std::mutex mutex;
      testing::run_ranks(static_cast<int>(ranks), [&](comm::CommWorld& world) {
        Step step(program, ranks == 1 ? nullptr : &world);
        const auto begin = std::chrono::steady_clock::now();
        const StepResult result = step(batches_of(world.rank()));
        const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
        const auto& [forward_backward, update, communication] = result.seconds;
        std::lock_guard lock(mutex);
        CHECK(result.own_loss == (counted ? 2 * (2 * world.rank() + 3) / 4.0 : 2 * (2 * world.rank() + 3) / 2.0));
        CHECK(forward_backward > 0);
        CHECK(update > 0);
        CHECK((communication > 0) == (ranks > 1));
        CHECK(forward_backward + update + communication <= all.count());
      });
    }
}

// Reads `small` for batches of at most two rows, else `large`.
struct ByRowsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return (x * (x.size(0) <= 2 ? small : large)).sum(); }
  at::Tensor small = register_parameter("small", torch::full({4}, 0.5));
  at::Tensor large = register_parameter("large", torch::full({4}, 0.25));
};
TORCH_MODULE(ByRows);

TEST_CASE("a parameter that the example batch does not train has no optimizer state: refused by name, SGD trains it") {
  const auto loss = [](ByRows& m, const Batch& b) { return m->forward(b[0]); };
  const CompileOptions quiet = {.notify = [](const std::string&) {}};
  for (const auto layout : {ParameterLayout::Flat, ParameterLayout::Dim0}) {
    Strategy strategy = one_rank();
    strategy.options.layout = layout;
    for (const Optimizer& optimizer : {Optimizer(AdamW{}), Optimizer(SGD{.momentum = 0.9})}) {
      Step step = compile(ByRows(), loss, optimizer, {at::ones({2, 4})}, strategy, nullptr, quiet);
      CHECK_THROWS_WITH_AS(step({at::ones({3, 4})}),
                           doctest::Contains("parameter large has a gradient for this batch, but had none for the "
                                             "example of compile, so there is no large."),
                           UserError);
      CHECK(step({at::ones({1, 4})}).loss > 0);
    }
    Step step = compile(ByRows(), loss, SGD{.lr = 0.125}, {at::ones({2, 4})}, strategy, nullptr, quiet);
    step({at::ones({3, 4})});
    CHECK(at::equal(step.gather("large"), at::full({4}, 0.25 - 0.125 * 3)));
    CHECK(at::equal(step.gather("small"), at::full({4}, 0.5)));
  }
}

TEST_CASE("ranks whose modules come with other values are told the first tensor that differs") {
  const auto loss = [](ByRows& m, const Batch& b) { return m->forward(b[0]); };
  for (const auto& axes : {std::vector<MeshAxis>{{"dp_shard", 3}}, {{"dp_replicate", 3}}})
    testing::run_ranks(3, [&](comm::CommWorld& world) {
      const auto make = [&](double large) {
        ByRows model;
        model->large.data()[3] = large;
        return compile(model, loss, SGD{.lr = 0.125}, {at::ones({3, 4})}, data_parallel(init_device_mesh(axes)),
                       &world);
      };
      std::string message = "compiled";
      try {
        make(world.rank() == 2 ? -0.25 : 0.25);
      } catch (const UserError& error) {
        message = error.what();
      }
      SFSDP_CHECK(message.starts_with("rank 0 and rank 2 have different initial values; first difference, line 2:"
                                      "\n    large f32[4] of bits "),
                  message);
      SFSDP_CHECK(message.find("torch::manual_seed") != std::string::npos, message);
      Step step = make(0.25);
      SFSDP_CHECK(step({at::ones({3, 4})}).loss == 3, "the same values train");
    });
}

TEST_CASE("a batch unlike the example in dtype or rank, or without values, is refused by its place") {
  Step step = compile(meta_mlp(), classification_loss<Mlp>, AdamW{}, classification_batch(3, 0), one_rank());
  const Batch good = classification_batch(3, 0);
  const auto refuse = [&](const Batch& batch, const char* text) {
    CHECK_THROWS_WITH_AS(step(batch), doctest::Contains(text), UserError);
    CHECK_THROWS_WITH_AS(step.eval(batch), doctest::Contains(text), UserError);
  };
  refuse({good[0].to(at::kDouble), good[1]},
         "batch.0 is f64[3, 8], was f32[3, 8] in the example of compile\n  expected");
  refuse({good[0], good[1].to(at::kInt)}, "batch.1 is i32[3], was i64[3] in the example");
  refuse({good[0][0], good[1]}, "batch.0 is f32[8], was f32[3, 8] in the example");
  refuse({good[0], at::Tensor()}, "batch.1 is undefined");
  refuse({good[0].to_sparse(), good[1]}, "batch.0 is sparse\n  expected a dense tensor");
  refuse({good[0].to(at::kMeta), good[1]}, "batch.0 is a meta tensor\n  expected a dense tensor");
  for (const at::Tensor& value : {at::zeros({16, 8}).to(at::kMeta), at::zeros({16, 8}).to_sparse()})
    CHECK_THROWS_WITH_AS(step.load_state_dict({{"up.weight", value}}), doctest::Contains("up.weight is "), UserError);
  CHECK(step(good).loss > 0);
}

}  // namespace step_test
}  // namespace sfsdp

// SPDX-License-Identifier: BSD-3-Clause
// A step's state and its other entrances: eval, state_dict, losses with counts, batch shapes, initialisation.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "sfsdp/base/error.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"

namespace sfsdp {
namespace state_test {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(double dropout = 0.0)
      : up(register_module("up", torch::nn::Linear(6, 10))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        down(register_module("down", torch::nn::Linear(10, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return down(drop(at::relu(up(x)))); }
  torch::nn::Linear up;
  torch::nn::Dropout drop;
  torch::nn::Linear down;
};
TORCH_MODULE(Net);

Batch rows_of(int64_t seed, int64_t first, int64_t rows) {
  at::Tensor x = at::empty({rows, 6}), y = at::empty({rows}, at::kLong);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < 6; ++i)
      x.mutable_data_ptr<float>()[r * 6 + i] = std::sin(static_cast<float>(seed * 7 + (first + r) * 6 + i));
    y.mutable_data_ptr<int64_t>()[r] = (seed + first + r) % 3;
  }
  return {x, y};
}

const auto mean_loss = [](Net& m, const Batch& b) { return at::cross_entropy_loss(m->forward(b[0]), b[1]); };
// Only classes 1 and 2 count, so ranks and micro-batches differ in how many rows they have.
const auto counted_loss = [](Net& m, const Batch& b) {
  const at::Tensor counts = b[1].ne(0);
  const at::Tensor each = at::cross_entropy_loss(m->forward(b[0]), b[1], {}, at::Reduction::None);
  return SumCount{(each * counts).sum(), counts.sum().to(at::kFloat)};
};

Strategy shards(int64_t world) { return data_parallel(init_device_mesh({{"dp_shard", world}})); }
Net meta_net(double dropout = 0.0) {
  return meta_init([=] { return Net(dropout); });
}

using testing::Trained;

// Four steps over a global batch of 12.
template <class Model, class Loss>
Trained train(Model model, Loss loss, Optimizer optimizer, int64_t world, int64_t micro_batches,
              double max_norm = 0.5) {
  CompileOptions options;
  options.micro_batches = micro_batches;
  options.max_norm = max_norm;
  options.seed = 7;
  const int64_t rows = 12 / world / micro_batches;
  auto program = compile_program(model, loss, optimizer, rows_of(0, 0, rows), shards(world), options);
  return testing::train_on_ranks(program, 4, [&](int64_t step, int64_t rank) {
    std::vector<Batch> batches;
    for (int64_t m = 0; m < micro_batches; ++m) batches.push_back(rows_of(step, (m * world + rank) * rows, rows));
    return batches;
  });
}

void check_equal(const Trained& got, const Trained& expected) {
  for (size_t k = 0; k < expected.results.size(); ++k) {
    CAPTURE(k);
    CHECK(got.results[k].loss == doctest::Approx(expected.results[k].loss).epsilon(1e-6));
    CHECK(got.results[k].grad_norm == doctest::Approx(expected.results[k].grad_norm).epsilon(1e-5));
  }
  for (const auto& [name, value] : expected.state) {
    CAPTURE(name);
    CHECK((got.state.at(name) - value).abs().max().item<double>() <= 1e-5);
  }
}

TEST_CASE("dropout falls on the same elements whatever the mesh and the micro-batches") {
  const Trained one = train(meta_net(0.4), mean_loss, AdamW{}, 1, 1);
  const Trained without = train(meta_net(0.0), mean_loss, AdamW{}, 1, 1);
  CHECK(std::abs(one.results[0].loss - without.results[0].loss) > 1e-4);
  check_equal(train(meta_net(0.4), mean_loss, AdamW{}, 2, 1), one);
  check_equal(train(meta_net(0.4), mean_loss, AdamW{}, 4, 1), one);
  check_equal(train(meta_net(0.4), mean_loss, AdamW{}, 1, 3), one);
  check_equal(train(meta_net(0.4), mean_loss, AdamW{}, 2, 2), one);
}

TEST_CASE("noise of a forward is the same on every mesh; ops that draw in call order are refused") {
  const auto noisy = [](Net& m, const Batch& b) {
    const at::Tensor noise = at::randn({b[0].size(0), 6}) + at::rand_like(b[0]) + at::bernoulli(at::sigmoid(b[0]));
    return at::cross_entropy_loss(m->forward(b[0] + 0.1 * noise), b[1]);
  };
  const Trained one = train(meta_net(), noisy, AdamW{}, 1, 1);
  check_equal(train(meta_net(), noisy, AdamW{}, 3, 2), one);
  const auto shuffled = [](Net& m, const Batch& b) {
    return mean_loss(m, {b[0].index_select(1, at::randperm(6)), b[1]});
  };
  CHECK_THROWS_WITH_AS(train(meta_net(), shuffled, AdamW{}, 1, 1), doctest::Contains("aten.randperm"), UserError);
}

TEST_CASE("two fills of normal_ are two draws") {
  const auto apart = [](Net& m, const Batch& b) {
    at::Tensor one = at::empty_like(b[0]).normal_(), other = at::empty_like(b[0]).normal_();
    return mean_loss(m, b) * 0 + (one - other).square().mean();
  };
  const Trained one = train(meta_net(), apart, AdamW{}, 1, 1);
  CHECK(one.results[0].loss > 0.5);  // 2, give or take
  check_equal(train(meta_net(), apart, AdamW{}, 2, 2), one);
}

// Query and memory have one shape: LibTorch asks whether they are equal, and the step checks that they are not.
struct AttendImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor memory = up(x);
    return std::get<0>(attention(x, memory, memory));
  }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(6, 6));
  torch::nn::MultiheadAttention attention = register_module("attention", torch::nn::MultiheadAttention(6, 2));
};
TORCH_MODULE(Attend);

TEST_CASE("attention between two tensors of one shape trains alike on every mesh") {
  const auto model = [] { return meta_init([] { return Attend(); }); };
  const auto loss = [](Attend& m, const Batch& b) {
    return m->forward(b[0].view({-1, 3, 6}).transpose(0, 1)).square().mean();
  };
  const Trained one = train(model(), loss, SGD{}, 1, 1);
  check_equal(train(model(), loss, SGD{}, 2, 2), one);
}

TEST_CASE("a (sum, count) loss is divided by the global count") {
  const Trained one = train(meta_net(), counted_loss, AdamW{}, 1, 1);
  {  // by hand: the loss of the first step is the mean over what counts
    Step step = compile(meta_net(), mean_loss, AdamW{}, rows_of(0, 0, 12), shards(1), nullptr, {.seed = 7});
    Net eager;
    testing::copy_weights(step, *eager);
    at::NoGradGuard no_grad;
    const auto [sum, count] = counted_loss(eager, rows_of(0, 0, 12));
    CHECK(one.results[0].loss == doctest::Approx((sum / count).item<double>()).epsilon(1e-6));
  }
  check_equal(train(meta_net(), counted_loss, AdamW{}, 2, 1), one);
  check_equal(train(meta_net(), counted_loss, AdamW{}, 4, 1), one);
  check_equal(train(meta_net(), counted_loss, AdamW{}, 1, 3), one);
  check_equal(train(meta_net(), counted_loss, AdamW{}, 2, 3), one);
}

TEST_CASE(
    "a count that no batch decides is counted once for each rank and micro-batch, and a loss that reads none too") {
  const auto constant_count = [](Net& m, const Batch& b) {
    const at::Tensor each = at::cross_entropy_loss(m->forward(b[0]), b[1], {}, at::Reduction::Sum);
    return SumCount{each, at::full({}, b[0].size(0))};
  };
  const auto frozen_count = [](Net& m, const Batch& b) {
    const at::Tensor each = at::cross_entropy_loss(m->forward(b[0]), b[1], {}, at::Reduction::Sum);
    return SumCount{each, at::scalar_tensor(b[0].size(0), at::kCPU)};
  };
  const auto decay_only = [](Net& m, const Batch&) { return m->up->weight.square().sum() + m->up->bias.sum(); };
  const Trained mean = train(meta_net(), mean_loss, AdamW{}, 1, 1);
  check_equal(train(meta_net(), constant_count, AdamW{}, 1, 1), mean);
  const Trained decayed = train(meta_net(), decay_only, AdamW{}, 1, 1);
  for (const auto& [world, micro_batches] : {std::pair(2, 1), std::pair(3, 2), std::pair(1, 3)}) {
    CAPTURE(world);
    check_equal(train(meta_net(), constant_count, AdamW{}, world, micro_batches), mean);
    check_equal(train(meta_net(), frozen_count, AdamW{}, world, micro_batches), mean);
    check_equal(train(meta_net(), decay_only, AdamW{}, world, micro_batches), decayed);
  }
}

TEST_CASE("two losses are not taken for a sum and a count") {
  static_assert(LossResult<at::Tensor> && LossResult<SumCount> && !LossResult<std::pair<at::Tensor, at::Tensor>>);
  const auto two = [](Net& m, const Batch& b) { return SumCount{mean_loss(m, b), m->up->weight.square().sum()}; };
  CHECK_THROWS_WITH_AS(train(meta_net(), two, AdamW{}, 1, 1), doctest::Contains("that depends on parameters"),
                       UserError);
  const auto each = [](Net& m, const Batch& b) { return SumCount{mean_loss(m, b), b[1].ne(0)}; };
  CHECK_THROWS_WITH_AS(train(meta_net(), each, AdamW{}, 1, 1), doctest::Contains("expected one number of targets"),
                       UserError);
}

TEST_CASE("a parameter whose gradient is all zero is updated like any other: decay, and the momentum it has") {
  const auto loss = [](Net& m, const Batch& b) { return mean_loss(m, b) * b[2].mean(); };
  const AdamW adamw{.lr = 0.1, .weight_decay = 0.5};
  const auto batch = [](float factor) {
    Batch b = rows_of(0, 0, 12);
    b.push_back(at::full({12}, factor));
    return b;
  };
  Step step = compile(meta_net(), loss, adamw, batch(1), shards(1));
  const at::Tensor start = step.gather("up.weight").to(at::kDouble);
  step(batch(0));
  const at::Tensor decayed = start * (1 - 0.1 * 0.5);
  CHECK((step.gather("up.weight") - decayed).abs().max().item<double>() <= 1e-7);
  step(batch(1));
  const at::Tensor p = step.gather("up.weight").to(at::kDouble), m = step.gather("up.weight.exp_avg").to(at::kDouble),
                   v = step.gather("up.weight.exp_avg_sq").to(at::kDouble);
  step(batch(0));  // the third step
  const at::Tensor moved =
      p * (1 - 0.1 * 0.5) - 0.1 / (1 - std::pow(adamw.beta1, 3)) * (adamw.beta1 * m) /
                                ((adamw.beta2 * v).sqrt() / std::sqrt(1 - std::pow(adamw.beta2, 3)) + adamw.eps);
  CHECK((step.gather("up.weight") - moved).abs().max().item<double>() <= 1e-6);
}

TEST_CASE("SGD with momentum equals torch::optim's rule, and shards") {
  const SGD sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01};
  const Trained one = train(meta_net(), mean_loss, sgd, 1, 1, 0);
  Step step = compile(meta_net(), mean_loss, sgd, rows_of(0, 0, 12), shards(1), nullptr, {.seed = 7});
  Net eager;
  std::map<std::string, at::Tensor> momentum;
  testing::copy_weights(step, *eager);
  for (int64_t k = 0; k < 4; ++k) {
    eager->zero_grad();
    mean_loss(eager, rows_of(k, 0, 12)).backward();
    at::NoGradGuard no_grad;
    for (auto& p : eager->named_parameters()) {
      at::Tensor& m = momentum[p.key()];
      const at::Tensor g = p.value().grad() + 0.01 * p.value();
      m = m.defined() ? 0.9 * m + g : g.clone();
      p.value().sub_(0.1 * m);
    }
  }
  for (auto& p : eager->named_parameters()) {
    CAPTURE(p.key());
    CHECK((one.state.at(p.key()) - p.value()).abs().max().item<double>() <= 1e-6);
  }
  check_equal(train(meta_net(), mean_loss, sgd, 4, 1, 0), one);
}

TEST_CASE("eval is the loss without dropout, gradients or update, over the weights as they stand") {
  auto program = compile_program(meta_net(0.5), mean_loss, AdamW{.lr = 0.05}, rows_of(0, 0, 6), shards(2));
  testing::run_ranks(2, [&](comm::CommWorld& world) {
    Step step(program, &world);
    const Batch mine = rows_of(3, world.rank() * 6, 6);
    for (int64_t k = 0; k < 2; ++k) {
      Net eager;
      testing::copy_weights(step, *eager);
      eager->eval();
      const double expected = mean_loss(eager, rows_of(3, 0, 12)).item<double>();
      const auto before = step.gather("up.weight");
      CHECK(step.eval(mine) == doctest::Approx(expected).epsilon(1e-6));
      CHECK(at::equal(step.gather("up.weight"), before));
      CHECK(step.step == k);
      step(rows_of(k, world.rank() * 6, 6));
    }
  });
}

TEST_CASE(
    "parameters that ZeRO stages 1 and 2 gather once per step follow what is loaded, in steps and in evaluations") {
  const auto program = [](int64_t zero_stage) {
    return compile_program(meta_net(), mean_loss, AdamW{.lr = 0.05}, rows_of(0, 0, 6),
                           data_parallel(init_device_mesh({{"dp_shard", 2}}), {.zero_stage = zero_stage}));
  };
  const auto gathered = program(3);
  for (const int64_t zero_stage : {1, 2}) {
    CAPTURE(zero_stage);
    const auto whole = program(zero_stage);
    testing::run_ranks(2, [&](comm::CommWorld& world) {
      Step expected(gathered, &world), got(whole, &world);
      const Batch mine = rows_of(3, world.rank() * 6, 6);
      const double at_first = expected.eval(mine);
      CHECK(got.eval(mine) == at_first);
      std::map<std::string, at::Tensor> saved;  // this rank's shards
      for (const auto& [name, value] : got.state_dict()) saved[name] = value.clone();
      for (int k = 0; k < 2; ++k) CHECK(got(mine).loss == expected(mine).loss);
      CHECK(got.eval(mine) == expected.eval(mine));
      CHECK(got.eval(mine) != at_first);
      for (const auto& [name, value] : expected.state_dict()) CHECK(at::equal(got.state_dict().at(name), value));
      got.load_state_dict(saved);
      CHECK(got.eval(mine) == at_first);
      expected.load_state_dict(saved);
      got.load_state_dict(saved);
      CHECK(got(mine).grad_norm == expected(mine).grad_norm);
    });
  }
}

TEST_CASE("eval leaves submodules in the mode they were in") {
  Net model = meta_net(0.5);
  model->drop->eval();  // frozen on purpose
  Step step = compile(model, mean_loss, AdamW{}, rows_of(0, 0, 12), shards(1));
  step.eval(rows_of(0, 0, 12));
  CHECK(model->is_training());
  CHECK(model->up->is_training());
  CHECK_FALSE(model->drop->is_training());
  CHECK_NOTHROW(step(rows_of(0, 0, 5)));  // captured again, still without dropout
  CHECK_FALSE(model->drop->is_training());
}

TEST_CASE("state_dict of one mesh loads into another, whole or as shards, and training goes on the same") {
  const auto optimizer = AdamW{.lr = 0.02};
  auto one = compile_program(meta_net(), mean_loss, optimizer, rows_of(0, 0, 12), shards(1));
  Step first(one, nullptr);
  first(rows_of(0, 0, 12));
  first(rows_of(1, 0, 12));
  std::map<std::string, at::Tensor> saved;
  for (const auto& [name, value] : first.state_dict()) saved[name] = value.clone();
  CHECK(saved.contains("up.weight.exp_avg_sq"));
  CHECK(saved.at("optimizer.step").item<float>() == 2.0f);
  const double expected = first(rows_of(2, 0, 12)).loss;
  const at::Tensor weight = first.gather("up.weight");

  for (const auto& [layout, zero_stage] : {std::pair(ParameterLayout::Flat, 3), std::pair(ParameterLayout::Dim0, 3),
                                           std::pair(ParameterLayout::Flat, 2), std::pair(ParameterLayout::Dim0, 1)}) {
    CAPTURE(zero_stage);
    auto three = compile_program(
        meta_net(), mean_loss, optimizer, rows_of(0, 0, 4),
        data_parallel(init_device_mesh({{"dp_shard", 3}}), {.zero_stage = zero_stage, .layout = layout}), {.seed = 99});
    testing::run_ranks(3, [&](comm::CommWorld& world) {
      Step step(three, &world);
      step.load_state_dict(saved);
      const double loss = step(rows_of(2, world.rank() * 4, 4)).loss;
      CHECK(loss == doctest::Approx(expected).epsilon(1e-6));
      CHECK((step.gather("up.weight") - weight).abs().max().item<double>() <= 1e-6);

      Step other(three, &world);
      std::map<std::string, at::Tensor> mine;
      for (const auto& [name, value] : step.state_dict()) mine[name] = value.clone();
      if (layout == ParameterLayout::Dim0)
        CHECK(mine.at("up.weight").size(0) == (world.rank() == 2 ? 2 : 4));  // 10 rows over 3: 4, 4, 2
      other.load_state_dict(mine);
      CHECK(at::equal(other.gather("up.weight"), step.gather("up.weight")));
      CHECK(at::equal(other.gather("down.bias.exp_avg"), step.gather("down.bias.exp_avg")));
    });
  }
}

TEST_CASE("load_state_dict and gather name what they do not know") {
  Step step = compile(meta_net(), mean_loss, AdamW{}, rows_of(0, 0, 12), shards(1));
  CHECK_THROWS_WITH_AS(step.load_state_dict({{"up.wieght", at::zeros({10, 6})}}), doctest::Contains("up.wieght"),
                       UserError);
  CHECK_THROWS_WITH_AS(step.load_state_dict({{"up.weight", at::zeros({6, 10})}}),
                       doctest::Contains("expected the whole [10, 6]"), UserError);
  CHECK_THROWS_WITH_AS(step.load_state_dict({{"up.weight", at::zeros({10, 6}, at::kLong)}}),
                       doctest::Contains("up.weight is of Long\n  expected Float"), UserError);
  CHECK_THROWS_WITH_AS(step.gather("nothing"), doctest::Contains("'nothing'"), UserError);
  CHECK_THROWS_WITH_AS(step(std::vector<Batch>{}), doctest::Contains("expected CompileOptions::micro_batches = 1"),
                       UserError);
}

TEST_CASE("a new batch shape compiles once, and is said") {
  std::vector<std::string> said;
  CompileOptions options;
  options.notify = [&](const std::string& notice) { said.push_back(notice); };
  Step step = compile(meta_net(), mean_loss, AdamW{}, rows_of(0, 0, 12), shards(1), nullptr, options);
  step(rows_of(0, 0, 12));
  CHECK(said.empty());
  step(rows_of(1, 0, 5));
  step(rows_of(2, 0, 5));
  step(rows_of(3, 0, 12));
  REQUIRE(said.size() == 1);
  CHECK(said[0].find("f32[5, 6]") != std::string::npos);
  CHECK(step.step == 4);
}

TEST_CASE("a parameter without dimensions is clipped and updated in its own dtype") {
  struct Factor : torch::nn::Module {
    at::Tensor x = register_parameter("x", at::ones({}, at::kBFloat16));
  };
  const auto loss = [](const std::shared_ptr<Factor>& m, const Batch& b) { return (m->x * b[0]).mean(); };
  const Batch batch = {at::full({4}, 8.0)};
  Step step = compile(std::make_shared<Factor>(), loss, AdamW{.lr = 0.25, .weight_decay = 0}, batch,
                      data_parallel(init_device_mesh({{"dp_shard", 1}}), {.layout = ParameterLayout::Dim0}), nullptr,
                      {.max_norm = 1.0});
  CHECK(step({batch}).grad_norm == 8);
  CHECK(at::equal(step.state_dict().at("x"), at::scalar_tensor(0.75, at::kBFloat16)));
}

// Moments have the dtype of what is stored, as torch.optim.AdamW's have.
TEST_CASE("modules of real float64, bfloat16 and float16 weights equal eager LibTorch, norm and clipping included") {
  for (const auto& [dtype, tolerance] :
       {std::pair(at::kDouble, 1e-13), std::pair(at::kBFloat16, 0x1p-8), std::pair(at::kHalf, 0x1p-11)}) {
    CAPTURE(static_cast<int>(dtype));
    // The second moment of a small gradient is 0 in float16: its root alone must not divide.
    const AdamW adamw{.lr = 0.02, .eps = dtype == at::kHalf ? 1e-2 : 1e-8};
    const auto loss = [dtype = dtype](Net& m, const Batch& b) {
      const at::Tensor out = m->forward(b[0].to(dtype));
      return at::cross_entropy_loss(dtype == at::kDouble ? out : out.to(at::kFloat), b[1]);
    };
    const auto net = [dtype = dtype] {
      torch::manual_seed(3);
      Net model;
      model->to(dtype);
      return model;
    };
    Net eager = net();
    testing::EagerTrainer trainer(eager.ptr(), adamw, 0.5);
    Trained expected;
    for (int64_t k = 0; k < 4; ++k)
      expected.results.push_back(trainer.step([&] { return loss(eager, rows_of(k, 0, 12)); }));
    for (const int64_t world : {1, 2, 3}) {
      CAPTURE(world);
      const Trained got = train(net(), loss, adamw, world, 1);
      for (size_t k = 0; k < 4; ++k) {
        CHECK(got.results[k].loss == doctest::Approx(expected.results[k].loss).epsilon(tolerance));
        CHECK(got.results[k].grad_norm == doctest::Approx(expected.results[k].grad_norm).epsilon(2 * tolerance));
      }
      for (const auto& [name, value] : trainer.state()) {
        CAPTURE(name);
        const at::Tensor& mine = got.state.at(name);
        CHECK((mine.scalar_type() == dtype));
        const double error = (mine.to(at::kDouble) - value.to(at::kDouble)).abs().max().item<double>();
        CHECK(error <= (world == 1 ? 1e-15 : 4 * tolerance));
      }
    }
  }
}

TEST_CASE("check_recapture finds a number that was frozen into the graph") {
  double factor = 1.0;
  const auto loss = [&factor](Net& m, const Batch& b) { return mean_loss(m, b) * factor; };
  auto program = compile_program(meta_net(), loss, AdamW{}, rows_of(0, 0, 12), shards(1));
  CHECK_NOTHROW(program->check_recapture(rows_of(0, 0, 12)));
  factor = 0.5;
  CHECK_THROWS_WITH_AS(program->check_recapture(rows_of(0, 0, 12)), doctest::Contains("batch as a tensor"), UserError);
}

// A tensor from outside is frozen whether a step reads it or what is made of it.
TEST_CASE("check_recapture finds a tensor from outside that has changed") {
  at::Tensor beta = at::full({1}, 0.25f);
  const auto derived = [&](Net& m, const Batch& b) { return mean_loss(m, b) * (1 - beta).sum(); };
  const auto complex = [&](Net& m, const Batch& b) {
    const at::Tensor turn = at::view_as_complex(at::stack({beta, beta}, -1));
    return mean_loss(m, b) * at::view_as_real(m->up->weight.sum() * turn).sum();
  };
  const auto expect = [&](auto loss, const std::string& difference) {
    beta.fill_(0.25);
    auto program = compile_program(meta_net(), loss, SGD{}, rows_of(0, 0, 12), shards(1));
    Step step(program, nullptr);
    const double before = step.eval(rows_of(0, 0, 12));
    CHECK_NOTHROW(program->check_recapture(rows_of(0, 0, 12)));
    beta.fill_(0.5);
    CHECK(step.eval(rows_of(0, 0, 12)) == before);
    CHECK_THROWS_WITH_AS(program->check_recapture(rows_of(0, 0, 12)), doctest::Contains(difference.c_str()), UserError);
    CHECK_THROWS_WITH_AS(program->check_recapture(rows_of(0, 0, 12)), doctest::Contains("batch as a tensor"),
                         UserError);
  };
  expect([&](Net& m, const Batch& b) { return mean_loss(m, b) * beta[0]; }, "element 0 was 0.25, now 0.5");
  expect([&](Net& m, const Batch& b) { return (m->up->weight.sum() * beta + mean_loss(m, b))[0]; },
         "aten.mul.Tensor at up read");
  expect(derived, "element 0 was 0.75, now 0.5");
  expect(complex, "element 0 was (0.25,0.25), now (0.5,0.5)");
}

TEST_CASE("a batch of fewer tensors than compiled, and micro-batches of two shapes, are refused") {
  CompileOptions options;
  options.micro_batches = 2;
  auto program = compile_program(meta_net(), mean_loss, AdamW{}, rows_of(0, 0, 6), shards(1), options);
  Step step(program, nullptr);
  const Batch whole = rows_of(0, 0, 6), inputs = {whole[0]};
  for (const std::vector<Batch>& batches : {std::vector<Batch>{inputs, inputs}, {whole, inputs}, {whole, {}}})
    CHECK_THROWS_AS(step(batches), UserError);
  CHECK_THROWS_WITH_AS(step({inputs, inputs}),
                       "step: the batch has 1 tensors: f32[6, 6]\n  expected 2, as in the example batch of compile",
                       UserError);
  CHECK_THROWS_WITH_AS(step.eval(inputs), doctest::Contains("the batch has 1 tensors"), UserError);
  CHECK_THROWS_WITH_AS(step({whole, rows_of(0, 6, 5)}),
                       doctest::Contains("expected f32[6, 6] i64[6], got f32[5, 6] i64[5]"), UserError);
  step({whole, {whole[0].t().contiguous().t(), whole[1]}});  // its strides are its own affair
}

// A momentum encoder: its weights follow those that are trained.
struct FollowedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    {
      at::NoGradGuard no_grad;
      target.mul_(0.9).add_(query->weight, 0.1);
    }
    return query(x) - at::mm(x, target.t());
  }
  torch::nn::Linear query = register_module("query", torch::nn::Linear(6, 3));
  at::Tensor target = register_buffer("target", query->weight.detach().clone());
};
TORCH_MODULE(Followed);

TEST_CASE("a buffer that follows a parameter is carried on every mesh, as a written parameter is told to be") {
  constexpr double kLr = 0.5;
  const auto loss = [](Followed& m, const Batch& b) { return m->forward(b[0]).square().mean(); };
  torch::manual_seed(3);
  Followed eager;
  std::vector<at::Tensor> parameters = eager->parameters();
  std::vector<double> losses;
  for (int64_t k = 0; k < 3; ++k) {
    const at::Tensor value = loss(eager, rows_of(k, 0, 12));
    const auto gradients = torch::autograd::grad({value}, parameters);
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].sub_(gradients[i] * kLr);
    losses.push_back(value.item<double>());
  }
  for (int64_t world : {1, 3})
    for (const auto layout : {ParameterLayout::Flat, ParameterLayout::Dim0}) {
      torch::manual_seed(3);
      Strategy strategy = shards(world);
      strategy.options.layout = layout;
      SGD sgd;
      sgd.lr = kLr;
      auto program = compile_program(Followed(), loss, sgd, rows_of(0, 0, 12 / world), strategy);
      testing::run_ranks(world, [&](comm::CommWorld& ranks) {
        Step step(program, &ranks);
        for (int64_t k = 0; k < 3; ++k) {
          const auto result = step(rows_of(k, ranks.rank() * 12 / world, 12 / world));
          CHECK(result.loss == doctest::Approx(losses[static_cast<size_t>(k)]).epsilon(1e-5));
        }
        CHECK(at::allclose(step.gather("target"), eager->target, 1e-5, 1e-6));
      });
    }
}

TEST_CASE("ranks that share real weights all get their part; a second set of Steps is refused by name") {
  auto program = compile_program(Net(), mean_loss, AdamW{}, rows_of(0, 0, 3), shards(4));
  testing::run_ranks(4, [&](comm::CommWorld& world) { Step(program, &world)(rows_of(0, 0, 3)); });
  for (const capture::StateTensor& tensor : program->state()) CHECK_FALSE(tensor.value.defined());
  CHECK_THROWS_WITH_AS(testing::run_ranks(4, [&](comm::CommWorld& world) { Step(program, &world); }),
                       doctest::Contains("the values of up.weight are gone"), UserError);
}

TEST_CASE("a run with more or fewer ranks than the mesh is refused, with the cure") {
  const auto refuse = [](int ranks, const Strategy& strategy, const std::string& text) {
    testing::run_ranks(ranks, [&](comm::CommWorld& world) {
      CHECK_THROWS_WITH_AS(compile(meta_net(), mean_loss, AdamW{}, rows_of(0, 0, 3), strategy, &world),
                           doctest::Contains(text.c_str()), UserError);
    });
  };
  refuse(2, shards(1), "mesh [dp_shard=1] has 1 rank, the run 2\n  expected as many: name all ranks in the mesh");
  refuse(4, shards(2), "mesh [dp_shard=2] has 2 ranks, the run 4");
  refuse(2, shards(4), "start 4 ranks, or make the mesh smaller");
  CHECK_THROWS_WITH_AS(compile(meta_net(), mean_loss, AdamW{}, rows_of(0, 0, 3), shards(2)),
                       doctest::Contains("pass the world of sfsdp::init()"), UserError);
  testing::run_ranks(1, [&](comm::CommWorld& world) {
    compile(meta_net(), mean_loss, AdamW{}, rows_of(0, 0, 3), shards(1), &world)(rows_of(0, 0, 3));
  });
}

TEST_CASE("a micro-batch of another shape is refused by name") {
  Step step = compile(meta_net(), mean_loss, AdamW{}, rows_of(0, 0, 4), shards(1), nullptr, {.micro_batches = 2});
  CHECK_THROWS_WITH_AS(
      step({rows_of(0, 0, 4), rows_of(0, 4, 3)}),
      doctest::Contains("micro-batch 1 has other shapes than micro-batch 0\n  expected f32[4, 6] i64[4], "
                        "got f32[3, 6] i64[3]"),
      UserError);
  CHECK(step.step == 0);
  const Batch turned = {rows_of(0, 4, 4)[0].t().contiguous().t(),
                        rows_of(0, 4, 4)[1]};  // the same values, other strides
  CHECK(step({rows_of(0, 0, 4), turned}).loss > 0);
}

TEST_CASE("ranks whose batches differ in shape all get a UserError, in steps and in evaluations, and can go on") {
  auto program = compile_program(meta_net(), mean_loss, AdamW{}, rows_of(0, 0, 4), shards(3));
  testing::run_ranks(
      3,
      [&](comm::CommWorld& world) {
        Step step(program, &world);
        const Batch mine = rows_of(0, 0, world.rank() == 2 ? 3 : 4);
        const auto differ = doctest::Contains("rank 0 and rank 2 have different programs");
        CHECK_THROWS_WITH_AS(step(mine), differ, UserError);
        CHECK_THROWS_WITH_AS(step.eval(mine), differ, UserError);
        // One rank alone cannot take the step at all: the others learn why.
        const std::vector<Batch> batches(world.rank() == 1 ? 2 : 1, rows_of(0, 0, 4));
        CHECK_THROWS_WITH_AS(step(batches),
                             doctest::Contains(world.rank() == 1 ? "step: got 2 micro-batches"
                                                                 : "rank 1 cannot go on: step: got 2 micro-batches"),
                             UserError);
        CHECK(step(rows_of(0, 4 * world.rank(), 4)).loss > 0);
        CHECK(step.step == 1);
      },
      20000);
}

TEST_CASE("ranks that differ in learning rate, steps done or seed all get a UserError with both values") {
  const auto program = [](uint64_t seed) {
    return compile_program(meta_net(), mean_loss, AdamW{.lr = 0.5}, rows_of(0, 0, 4), shards(3), {.seed = seed});
  };
  const auto shared = program(1), other = program(2);
  testing::run_ranks(3, [&](comm::CommWorld& world) {
    const bool last = world.rank() == 2;
    CHECK_THROWS_WITH_AS(Step(last ? other : shared, &world), doctest::Contains("CompileOptions::seed = 2"), UserError);
    Step step(shared, &world);
    const Batch mine = rows_of(0, world.rank() * 4, 4);
    if (last) step.lr = 0.25;
    const auto lr_differs = doctest::Contains("rank 0 and rank 2 have different Step::lr: 0.5 and 0.25");
    CHECK_THROWS_WITH_AS(step(mine), lr_differs, UserError);
    CHECK_THROWS_WITH_AS(step.eval(mine), lr_differs, UserError);
    step.lr = 0.5;
    if (last) step.step = 4;
    CHECK_THROWS_WITH_AS(step(mine), doctest::Contains("different Step::step: 0 and 4"), UserError);
    step.step = 0;
    CHECK(step(mine).loss > 0);
  });
}

}  // namespace state_test
}  // namespace sfsdp

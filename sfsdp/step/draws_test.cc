// SPDX-License-Identifier: BSD-3-Clause
// Any mesh draws the same random numbers, wherever the batch is in what is drawn.
#include <doctest/doctest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/pimpl.h>

#include "sfsdp/base/error.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/eager_torch.h"

namespace sfsdp {
namespace draws_test {

struct ScaleImpl : torch::nn::Module {
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(0.4));
  at::Tensor weight = register_parameter("weight", torch::full({4}, 0.5));
};
TORCH_MODULE(Scale);

using DrawingLoss = at::Tensor (*)(Scale& model, const at::Tensor& x);

// Two steps over a global batch of 8 rows of [3, 4], in equal parts. `batch_dim`: of the tensor that the loss is given.
testing::Trained train_drawing(DrawingLoss loss, int64_t world, int64_t micro_batches, int64_t batch_dim = 0) {
  const int64_t rows = 8 / world / micro_batches;
  const auto part = [=](int64_t step, int64_t place) {
    const at::Tensor all = torch::sin(torch::arange(96, torch::kFloat) + static_cast<double>(step)).view({8, 3, 4});
    return Batch{all.narrow(0, place * rows, rows).transpose(0, batch_dim).contiguous()};
  };
  CompileOptions options;
  options.micro_batches = micro_batches;
  options.seed = 7;
  DataParallelOptions parallel;
  if (batch_dim != 0) parallel.batch_dims = {batch_dim};
  auto program = compile_program(
      meta_init([] { return Scale(); }), [=](Scale& m, const Batch& b) { return loss(m, b[0]); }, SGD{.lr = 0.1},
      part(0, 0), data_parallel(init_device_mesh({{"dp_shard", world}}), parallel), options);
  return testing::train_on_ranks(program, 2, [=](int64_t step, int64_t rank) {
    std::vector<Batch> batches;
    for (int64_t m = 0; m < micro_batches; ++m) batches.push_back(part(step, m * world + rank));
    return batches;
  });
}

void expect_same_draws(DrawingLoss loss, int64_t batch_dim = 0) {
  const testing::Trained one = train_drawing(loss, 1, 1, batch_dim);
  for (const auto& [world, micro_batches] : std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {4, 1}, {1, 2}, {2, 4}}) {
    CAPTURE(world);
    CAPTURE(micro_batches);
    const testing::Trained several = train_drawing(loss, world, micro_batches, batch_dim);
    for (size_t k = 0; k < one.results.size(); ++k) {
      CHECK(several.results[k].loss == doctest::Approx(one.results[k].loss).epsilon(1e-6));
      CHECK(several.results[k].grad_norm == doctest::Approx(one.results[k].grad_norm).epsilon(1e-5));
    }
  }
}

TEST_CASE("any mesh draws the same: the batch in another dimension than 0") {
  expect_same_draws([](Scale& m, const at::Tensor& x) {  // [T, B, C]
    return (m->drop(x.transpose(0, 1)) * m->weight).square().mean();
  });
  expect_same_draws([](Scale& m, const at::Tensor& x) {  // [C, B, T], by sizes alone
    return (x * m->weight * torch::randn({4, x.size(0), 3}).permute({1, 2, 0})).square().mean();
  });
  const DrawingLoss as_given = [](Scale& m, const at::Tensor& x) { return (m->drop(x) * m->weight).square().mean(); };
  expect_same_draws(as_given, 1);  // the batch comes as [T, B, C]
}

TEST_CASE("any mesh draws the same: a value without a batch is the same on all ranks and in all micro-batches") {
  expect_same_draws(
      [](Scale& m, const at::Tensor& x) { return ((x + torch::randn({4})) * m->weight).square().mean(); });
  expect_same_draws([](Scale& m, const at::Tensor& x) {
    return (x * m->drop(m->weight) + torch::rand({1, 3, 1})).square().mean();
  });
  expect_same_draws([](Scale& m, const at::Tensor& x) {  // also beside ranks of one row each
    return (torch::feature_dropout(x.unsqueeze(3), 0.4, true).squeeze(3) * m->weight).square().mean();
  });
}

TEST_CASE("any mesh draws the same: a dimension of rows and something else") {
  expect_same_draws([](Scale& m, const at::Tensor& x) {  // [B · T, C]
    return (m->drop(x.flatten(0, 1)).square() * m->weight).mean();
  });
  expect_same_draws([](Scale& m, const at::Tensor& x) {  // [T · B, C], through a product
    const at::Tensor folded = x.transpose(0, 1).flatten(0, 1);
    return (m->drop(folded.matmul(torch::ones({4, 4}))) * m->weight).square().mean();
  });
}

// The slope of RReLU, as the error of its own op recommends.
TEST_CASE("any mesh draws the same: numbers of a range") {
  const DrawingLoss loss = [](Scale& m, const at::Tensor& x) {
    const at::Tensor slope = at::empty_like(x).uniform_(0.125, 0.375);
    return (at::where(x < 0, x * slope, x) * m->weight).square().mean();
  };
  expect_same_draws(loss);
  const DrawingLoss between = [](Scale& m, const at::Tensor& x) {
    const at::Tensor drawn = at::empty_like(x).uniform_(-3, -2);
    return (at::where((drawn >= -3).logical_and(drawn < -2), at::zeros_like(x), at::ones_like(x)) * m->weight).mean();
  };
  for (const StepResult& result : train_drawing(between, 2, 1).results) CHECK(result.loss == 0);
}

TEST_CASE("a draw whose batch is not found is refused where it matters, with a cure") {
  const auto refuses = [](DrawingLoss loss, const char* what) {
    CAPTURE(what);
    CHECK_NOTHROW(train_drawing(loss, 1, 1));
    for (const char* part : {what, "expected sizes taken from the batch"}) {
      CHECK_THROWS_WITH_AS(train_drawing(loss, 2, 1), doctest::Contains(part), UserError);
      CHECK_THROWS_WITH_AS(train_drawing(loss, 1, 2), doctest::Contains(part), UserError);
    }
  };
  refuses(
      [](Scale& m, const at::Tensor& x) {  // rows against rows
        const at::Tensor pairs = x.select(1, 0).matmul(x.select(1, 1).t());
        return (m->drop(pairs).mean() * m->weight).sum();
      },
      "which grows in more than one way");
  refuses(
      [](Scale& m, const at::Tensor& x) {  // a number of rows that is written down
        return (m->drop(x.view({x.numel() == 96 ? 8 : 4, 12})).mean() * m->weight).sum();
      },
      "with 5 times the rows it cannot be captured");
  refuses(
      [](Scale& m, const at::Tensor& x) {  // two copies of the rows in one dimension
        return (m->drop(torch::cat({x, -x})) * m->weight).square().mean();
      },
      "holds rows and something else");
  refuses(
      [](Scale& m, const at::Tensor& x) {  // row by row
        at::Tensor sum = torch::zeros({});
        for (int64_t row = 0; row < x.size(0); ++row) sum = sum + (m->drop(x[row]) * m->weight).sum();
        return sum / x.size(0);
      },
      "the step draws");
  const auto compile_with = [](std::vector<int64_t> batch_dims) {
    compile_program(
        meta_init([] { return Scale(); }), [](Scale& m, const Batch& b) { return (m->drop(b[0]) * m->weight).mean(); },
        SGD{}, {torch::ones({2, 3, 4})},
        data_parallel(init_device_mesh({{"dp_shard", 2}}), {.batch_dims = std::move(batch_dims)}));
  };
  CHECK_NOTHROW(compile_with({1}));
  for (const std::vector<int64_t>& dims : std::vector<std::vector<int64_t>>{{3}, {-2}, {0, 0}})
    CHECK_THROWS_WITH_AS(compile_with(dims), doctest::Contains("expected a dimension of each tensor"), UserError);
}

}  // namespace draws_test
}  // namespace sfsdp

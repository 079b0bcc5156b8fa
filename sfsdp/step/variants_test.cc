// SPDX-License-Identifier: BSD-3-Clause
// The graphs of a program: how long each is kept, and what ranks find out about them and their batches.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"

namespace sfsdp {
namespace variants_test {

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return drop(at::relu(up(x))); }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(6, 10));
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(0.5));
};
TORCH_MODULE(Net);

Net meta_net() {
  return meta_init([] { return Net(); });
}
Batch rows_of(int64_t step, int64_t rows) {
  return {at::arange(rows * 6, at::kFloat).add(static_cast<double>(step)).sin().view({rows, 6})};
}
const auto mean_loss = [](Net& m, const Batch& b) { return m->forward(b[0]).square().mean(); };
Strategy one_rank() { return data_parallel(init_device_mesh({{"dp_shard", 1}})); }

TEST_CASE("batch shapes are kept up to a bound: the one used longest ago goes, said once, and changes no bit") {
  std::vector<std::string> said;
  CompileOptions options;
  options.max_variants = 2;
  options.notify = [&](const std::string& notice) { said.push_back(notice); };
  const auto make = [&] {
    return compile(meta_net(), mean_loss, AdamW{}, rows_of(0, 12), one_rank(), nullptr, options);
  };
  Step step = make();
  options.max_variants = 32;
  options.notify = [](const std::string&) {};
  Step unbounded = make();
  const auto take = [&](int64_t rows) {
    const StepResult got = step(rows_of(step.step, rows)), expected = unbounded(rows_of(unbounded.step, rows));
    CHECK(got.loss == expected.loss);
    CHECK(got.grad_norm == expected.grad_norm);
  };
  const auto let_go = [&](const char* shapes) {
    return std::ranges::count_if(said, [&](const std::string& notice) {
      return notice.starts_with(concat("let go of the step for training ", shapes));
    });
  };
  for (const int64_t rows : {12, 5, 6, 5}) take(rows);
  const std::weak_ptr<exec::Executor> five = step.executor(rows_of(0, 5)), six = step.executor(rows_of(0, 6)),
                                      first = step.executor(rows_of(0, 12));
  CHECK(said.size() == 2);
  take(5);
  take(7);
  CHECK(six.expired());
  CHECK_FALSE(five.expired());
  CHECK_FALSE(first.expired());  // state was laid out for it: it stays
  CHECK(said.size() == 4);
  CHECK(let_go("f32[6, 6]") == 1);
  for (const int64_t rows : {12, 6, 12, 5}) take(rows);  // 6 and 5 are compiled again
  CHECK(said.size() == 6);
  CHECK(std::ranges::count_if(said, [](const std::string& n) { return n.starts_with("let go of"); }) == 1);
  CHECK(step.eval(rows_of(0, 6)) == unbounded.eval(rows_of(0, 6)));
}

// One that somebody holds is whole, though the program has let go of it.
TEST_CASE("a graph that was asked for outlives the program, and its place among those that are kept") {
  CompileOptions options;
  options.max_variants = 1;
  options.notify = [](const std::string&) {};
  auto program = compile_program(meta_net(), mean_loss, AdamW{}, rows_of(0, 12), one_rank(), options);
  const auto first = program->first(), five = program->training(rows_of(0, 5));
  const std::string text = ir::print(five->graph);
  program->training(rows_of(0, 6));
  CHECK(five->let_go);
  CHECK_FALSE(first->let_go);
  const auto again = program->training(rows_of(0, 5));
  CHECK(ir::print(again->graph) == text);
  program.reset();
  CHECK(ir::print(five->graph) == text);
  CHECK(first->graph.ops().size() > 10);
}

// Multiplies batches of more than two rows by what it made for itself and has not registered.
struct GatedImpl : torch::nn::Module {
  explicit GatedImpl(double last) : gate(at::ones({4})) { gate[3] = last; }
  at::Tensor forward(const at::Tensor& x) { return x.size(0) <= 2 ? x * weight : x * weight * gate; }
  at::Tensor weight = register_parameter("weight", torch::full({4}, 0.5));
  at::Tensor gate;
};
TORCH_MODULE(Gated);
struct AroundGatedImpl : torch::nn::Module {
  explicit AroundGatedImpl(double last) : inner(register_module("inner", Gated(last))) {}
  at::Tensor forward(const at::Tensor& x) { return inner->forward(x).sum(); }
  Gated inner;
};
TORCH_MODULE(AroundGated);

TEST_CASE("ranks whose modules hold other tensors that are not registered are told which, before they train on them") {
  const auto loss = [](AroundGated& m, const Batch& b) { return m->forward(b[0]); };
  testing::run_ranks(3, [&](comm::CommWorld& world) {
    CompileOptions options;
    options.notify = [](const std::string&) {};
    const auto make = [&](double last, int64_t rows) {
      return compile(AroundGated(last), loss, SGD{.lr = 0.125}, {at::ones({rows, 4})},
                     data_parallel(init_device_mesh({{"dp_shard", 3}})), &world, options);
    };
    const auto said_by = [&](const auto& body) -> std::string {
      try {
        body();
      } catch (const UserError& error) {
        return error.what();
      }
      return "nothing";
    };
    const double last = world.rank() == 2 ? 2.0 : 1.0;
    const auto check = [](const std::string& message) {
      SFSDP_CHECK(message.starts_with("rank 0 and rank 2 have different constants; first difference, line 1:"
                                      "\n    f32[4] of bits "),
                  message);
      SFSDP_CHECK(message.find(", read by aten.mul.Tensor at inner") != std::string::npos, message);
      SFSDP_CHECK(message.find("make them buffers") != std::string::npos, message);
    };
    check(said_by([&] { make(last, 3); }));
    // of a batch shape that comes later, and of an evaluation
    Step step = make(last, 2);
    SFSDP_CHECK(step({at::ones({2, 4})}).loss == 4, "the graph of two rows has no constant");
    check(said_by([&] { step({at::ones({3, 4})}); }));
    check(said_by([&] { step.eval({at::ones({3, 4})}); }));
    SFSDP_CHECK(step({at::ones({2, 4})}).loss > 0, "and the ranks go on");
    Step same = make(2, 3);
    SFSDP_CHECK(same({at::ones({3, 4})}).loss == 7.5, "constants that are alike");
  });
}

TEST_CASE("a plan says the bits of what the module holds and has not registered; a Step refuses others") {
  const auto loss = [](AroundGated& m, const Batch& b) { return m->forward(b[0]); };
  const Batch batch = {at::ones({3, 4})};
  const auto program = compile_program(AroundGated(1), loss, SGD{.lr = 0.125}, batch,
                                       data_parallel(init_device_mesh({{"dp_shard", 1}})));
  const auto variant = program->first();
  const std::string text = plan::print(variant->plan);
  CHECK(text.find(" bits=none") == std::string::npos);
  CHECK(text.find(" bits=") != std::string::npos);
  variant->constants.at(0).mul_(2);
  Step step(program, nullptr);
  CHECK_THROWS_WITH_AS(step(batch), doctest::Contains("the tensor read by aten.mul.Tensor at inner"), UserError);
}

struct LookUpImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& ids) { return table->forward(ids).sum(); }
  torch::nn::Embedding table = register_module("table", torch::nn::Embedding(5, 4));
};
TORCH_MODULE(LookUp);

TEST_CASE("a batch that one rank alone cannot take while it runs ends the step of all, with that rank's text") {
  const auto loss = [](LookUp& m, const Batch& b) { return m->forward(b[0]); };
  const Batch good = {at::arange(4, at::kLong)}, bad = {at::full({4}, 9, at::kLong)};
  for (const bool evaluates : {false, true}) {
    const auto program = compile_program(meta_init([] { return LookUp(); }), loss, SGD{.lr = 0.125}, good,
                                         data_parallel(init_device_mesh({{"dp_shard", 3}})));
    std::vector<std::string> said(3);
    testing::run_ranks(3, [&](comm::CommWorld& world) {
      Step step(program, &world);
      step(good);
      std::string& message = said[static_cast<size_t>(world.rank())];
      const Batch& batch = world.rank() == 1 ? bad : good;
      try {
        if (evaluates)
          step.eval(batch);
        else
          step(batch);
      } catch (const UserError& error) {
        message = concat("UserError ", error.what());
      } catch (const CommError& error) {
        message = concat("CommError ", error.what());
      }
    });
    CHECK_MESSAGE(said[1].starts_with("UserError aten.embedding at table on "), said[1]);
    for (const size_t rank : {0, 2}) {
      CHECK_MESSAGE(said[rank].starts_with("CommError "), said[rank]);
      CHECK_MESSAGE(said[rank].find("rank 1 aborted: aten.embedding at table on ") != std::string::npos, said[rank]);
    }
  }
}

}  // namespace variants_test
}  // namespace sfsdp

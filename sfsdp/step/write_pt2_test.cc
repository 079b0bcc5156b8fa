// SPDX-License-Identifier: BSD-3-Clause
// Archives of C++ modules, read back and run by models/exported; tests/e2e/pt2.sh runs them in Python.
#include "sfsdp/step/write_pt2.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/exported/read_values.h"
#include "sfsdp/models/exported/exported_module.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace write_pt2_test {

using testing::TemporaryFolder;

const auto forward_all = [](auto& model, const Batch& batch) { return model->forward(batch[0]); };
Pt2Options of_tokens() { return {.sizes = {{"batch", "length"}}, .inputs = {"tokens"}}; }
const Batch kTokens = {at::zeros({2, 6}, at::kLong)};

// The module that an archive is, with its values, in eval mode.
models::ExportedModule read_back(const std::string& path) {
  const auto program = std::make_shared<const exported::Program>(exported::read_program(path));
  models::ExportedModule module(program);
  at::NoGradGuard no_grad;
  const auto fill = [&](const std::string& name, at::Tensor& value) {
    const auto t = std::ranges::find(program->state, name, &exported::StateTensor::name);
    REQUIRE(t != program->state.end());
    REQUIRE(value.is_contiguous());
    exported::read_values(program->archive, *t, 0, {static_cast<std::byte*>(value.mutable_data_ptr()), value.nbytes()});
  };
  for (auto& p : module->named_parameters()) fill(p.key(), p.value());
  for (auto& b : module->named_buffers()) fill(b.key(), b.value());
  module->eval();
  return module;
}

at::Tensor ids(std::vector<int64_t> shape, int64_t most) {
  at::Tensor x = at::arange(at::empty(shape).numel(), at::kLong);
  return (x * x * 7 + x * 3 + 5).remainder(most).reshape(shape);
}

// Bit for bit, at sizes of which none was captured.
template <class Model>
void expect_same_logits(Model& model, const std::string& path, int64_t vocab) {
  at::NoGradGuard no_grad;
  auto archive = read_back(path);
  model->eval();
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{1, 1}, {2, 9}, {3, 16}, {7, 1}}) {
    CAPTURE(shape[0]);
    CAPTURE(shape[1]);
    const at::Tensor x = ids(shape, vocab);
    const at::Tensor expected = model->forward(x), got = archive->forward({x}).at(0);
    CHECK((got.scalar_type() == expected.scalar_type()));
    CHECK(at::equal(got, expected));
  }
}

const exported::StateTensor* find(const exported::Program& program, const std::string& name) {
  const auto found = std::ranges::find(program.state, name, &exported::StateTensor::name);
  return found == program.state.end() ? nullptr : &*found;
}

TEST_CASE("write_pt2: language models compute in the archive what they do here, bit for bit, at any size") {
  const TemporaryFolder folder;
  models::Llama3Args args = testing::tiny_llama();
  models::Llama3 llama(args);
  write_pt2(llama, forward_all, kTokens, folder / "llama.pt2", of_tokens());
  expect_same_logits(llama, folder / "llama.pt2", args.vocab_size);

  args.rope_scaling = std::nullopt;
  args.qkv_bias = args.qk_norm = args.tied = true;
  models::Llama3 qwen(args);
  write_pt2(qwen, forward_all, kTokens, folder / "qwen.pt2", of_tokens());
  expect_same_logits(qwen, folder / "qwen.pt2", args.vocab_size);

  models::Gpt gpt(testing::tiny_gpt());
  Pt2Options options = of_tokens();
  options.ranges["length"] = {1, 16};
  write_pt2(gpt, forward_all, kTokens, folder / "gpt.pt2", options);
  expect_same_logits(gpt, folder / "gpt.pt2", testing::tiny_gpt().vocab_size);
}

TEST_CASE("write_pt2: in bfloat16, parameters are stored and computed with in it") {
  const TemporaryFolder folder;
  models::Llama3 llama(testing::tiny_llama());
  Pt2Options options = of_tokens();
  options.dtype = at::kBFloat16;
  write_pt2(llama, forward_all, kTokens, folder / "llama.pt2", options);
  CHECK((llama->named_parameters()["norm.weight"].scalar_type() == at::kFloat));
  const auto program = exported::read_program(folder / "llama.pt2");
  CHECK(find(program, "norm.weight")->dtype == ir::DType::bf16);
  llama->to(at::kBFloat16);
  expect_same_logits(llama, folder / "llama.pt2", testing::tiny_llama().vocab_size);
}

// Batch norm, dropout, convolution, a buffer of its own, a constant, two outputs, one that is cut by a number.
struct ImageNetImpl : torch::nn::Module {
  ImageNetImpl()
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(8))),
        drop(register_module("drop", torch::nn::Dropout(0.5))),
        out(register_module("out", torch::nn::Linear(8, 5))),
        scale(register_buffer("scale", at::full({8}, 1.5))),
        shift(torch::tensor({0.25F, -0.5F})) {}
  std::vector<at::Tensor> forward(const at::Tensor& images) {
    const at::Tensor h = at::relu(norm(conv(images)));
    const at::Tensor mean = drop(h.mean({2, 3}) * scale);
    return {out(mean) + shift.repeat({3}).slice(0, 1), h.flatten(1).slice(1, 8)};
  }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear out;
  at::Tensor scale, shift;
};
TORCH_MODULE(ImageNet);

TEST_CASE("write_pt2: batch norm reads its statistics, dropout is off, height and width vary too") {
  const TemporaryFolder folder;
  ImageNet net;
  for (int i = 0; i < 3; ++i) net->forward(at::rand({4, 3, 8, 8}));  // statistics that are not those of the start
  const Pt2Options options = {.sizes = {{"batch", "", "height", "width"}}, .inputs = {"images"}};
  write_pt2(net, forward_all, {at::empty({2, 3, 8, 8})}, folder / "net.pt2", options);
  CHECK(net->is_training());
  auto archive = read_back(folder / "net.pt2");
  const exported::Program& program = archive->program();
  CHECK(find(program, "norm.running_var")->kind == exported::StateTensor::Kind::Buffer);
  CHECK(find(program, "scale") != nullptr);
  CHECK(find(program, "constant_0")->kind == exported::StateTensor::Kind::Constant);
  CHECK(program.ranges.size() == 3);
  net->eval();
  at::NoGradGuard no_grad;
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{1, 3, 8, 8}, {3, 3, 6, 10}, {5, 3, 1, 1}}) {
    const at::Tensor images = at::rand(shape);
    const auto expected = net->forward(images), got = archive->forward({images});
    REQUIRE(got.size() == 2);
    CHECK(at::equal(got[0], expected[0]));
    CHECK(at::equal(got[1], expected[1]));
  }
}

TEST_CASE("write_pt2: a module is as it was afterwards, its tensors tied, and it trains on") {
  const TemporaryFolder folder;
  models::Gpt gpt(testing::tiny_gpt());
  const at::Tensor table = gpt->named_parameters()["wte.weight"];
  const at::Tensor before = table.clone();
  Pt2Options options = of_tokens();
  options.ranges["length"] = {1, 16};
  write_pt2(gpt, forward_all, kTokens, folder / "gpt.pt2", options);
  CHECK(at::equal(table, before));
  CHECK(table.requires_grad());
  const auto logits = gpt->forward(kTokens[0]);
  logits.sum().backward();
  CHECK(table.grad().defined());
  CHECK_THROWS_WITH_AS(write_pt2(gpt, forward_all, kTokens, folder / "gpt.pt2", options),
                       doctest::Contains("is there already"), UserError);
}

TEST_CASE("write_pt2: a compiled module's values are its Step's") {
  const TemporaryFolder folder;
  models::Llama3 llama(testing::tiny_llama());
  Step step = compile(llama, testing::loss_of, AdamW{.lr = 1e-2}, testing::tokens(0, 0, 4),
                      data_parallel(init_device_mesh({{"dp_shard", 1}})));
  step(testing::tokens(0, 0, 4));
  CHECK_THROWS_WITH_AS(write_pt2(llama, forward_all, kTokens, folder / "none.pt2", of_tokens()),
                       doctest::Contains("there are no values of tok_embeddings.weight"), UserError);
  Pt2Options options = of_tokens();
  options.values = [&](const std::string& path) { return step.gather(path); };
  write_pt2(llama, forward_all, kTokens, folder / "llama.pt2", options);
  step(testing::tokens(1, 0, 4));  // goes on

  models::Llama3 trained(testing::tiny_llama());
  {
    at::NoGradGuard no_grad;
    auto archive = read_back(folder / "llama.pt2");
    for (auto& p : trained->named_parameters()) p.value().copy_(archive->named_parameters()[p.key()]);
    expect_same_logits(trained, folder / "llama.pt2", testing::tiny_llama().vocab_size);
  }
  const at::Tensor later = step.gather("norm.weight");
  CHECK(!at::equal(later, trained->named_parameters()["norm.weight"]));
}

TEST_CASE("write_pt2: two ranks gather what one of them writes") {
  const TemporaryFolder folder;
  const auto program = compile_program(testing::make_llama(), testing::loss_of, AdamW{.lr = 1e-2},
                                       testing::tokens(0, 0, 4), data_parallel(init_device_mesh({{"dp_shard", 2}})));
  at::Tensor norm;
  testing::run_ranks(2, [&](comm::CommWorld& world) {
    Step step(program, &world);
    step(testing::tokens(0, 4 * world.rank(), 4));
    Pt2Options options = of_tokens();
    options.values = [&](const std::string& path) { return step.gather(path); };
    models::Llama3 same = testing::make_llama();
    write_pt2(same, forward_all, kTokens, world.rank() == 0 ? folder / "llama.pt2" : std::string(), options);
    const at::Tensor there = step.gather("norm.weight");
    if (world.rank() == 0) norm = there;
  });
  CHECK(at::equal(read_back(folder / "llama.pt2")->named_parameters()["norm.weight"], norm));
}

TEST_CASE("write_pt2: an 8B model is captured without memory for it") {
  const auto args = models::llama3_args("8B");
  auto model = meta_init([&] { return models::Llama3(args); });
  const auto program = step::capture_program(
      *model, capture::look_at_state(*model),
      [&](const Batch& batch) { return std::vector<at::Tensor>{model->forward(batch[0])}; }, kTokens, of_tokens());
  CHECK(program.contents.state.size() == 291);  // 32 layers of 9, and three more
  CHECK(program.constants.empty());
}

// A function of one input as a module.
struct OneOpImpl : torch::nn::Module {
  explicit OneOpImpl(std::function<at::Tensor(const at::Tensor&)> function) : body(std::move(function)) {}
  at::Tensor forward(const at::Tensor& x) { return body(x); }
  std::function<at::Tensor(const at::Tensor&)> body;
};
TORCH_MODULE(OneOp);

void refuses(const std::string& words, const std::function<at::Tensor(const at::Tensor&)>& body,
             const Pt2Options& options = {.sizes = {{"rows", "columns"}}}) {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(write_pt2(OneOp(body), forward_all, {at::zeros({4, 6})}, folder / "x.pt2", options),
                       doctest::Contains(words.c_str()), UserError);
  CHECK(!std::filesystem::exists(folder / "x.pt2"));
}

TEST_CASE("write_pt2: what depends on sizes in another way is refused, with op and numbers") {
  refuses("argument end of aten.slice.Tensor is 3 at rows = 5, columns = 7; 9 at rows = 31, columns = 19",
          [](const at::Tensor& x) { return x.slice(1, 0, x.size(1) / 2); });
  refuses("aten.relu is aten.tanh\n  at rows = 251, columns = 2053; before, at rows = 5, columns = 7",
          [](const at::Tensor& x) { return x.size(1) > 100 ? x.tanh() : x.relu(); });
  refuses("aten.mul.Scalar has other = 0.05", [](const at::Tensor& x) { return x * (1.0 / x.size(1)); });
  refuses("a constant of shape [1] that is another at other sizes",
          [](const at::Tensor& x) { return x + torch::tensor({static_cast<float>(x.size(1))}); });
  refuses("size rows may vary from 3 to 5", [](const at::Tensor& x) { return x.relu(); },
          {.sizes = {{"rows"}}, .ranges = {{"rows", {3, 5}}}});
  refuses("Pt2Options::ranges has row from 1", [](const at::Tensor& x) { return x.relu(); },
          {.sizes = {{"rows"}}, .ranges = {{"row", {1, 50}}}});
  refuses("names 3 dimensions of input 0", [](const at::Tensor& x) { return x.relu(); }, {.sizes = {{"a", "b", "c"}}});
  refuses("reads the value of a tensor of shape", [](const at::Tensor& x) { return x * x.sum().item<float>(); });
}

TEST_CASE("write_pt2: sums and products of sizes are computed in the graph") {
  const TemporaryFolder folder;
  const auto body = [](const at::Tensor& x) {
    const int64_t r = x.size(0), c = x.size(1);
    const at::Tensor wide = at::constant_pad_nd(x, {2, 3});  // columns + 5
    const at::Tensor flat =
        wide.reshape({r * (c + 5)}).slice(0, 1, 3 * r + 2);  // rows · columns + 5 · rows, 3 · rows + 2
    return flat + at::arange(3 * r + 1, x.options()) * r + at::full({1}, c * r * 2 - 7, x.options());
  };
  OneOp module(body);
  write_pt2(module, forward_all, {at::zeros({4, 6})}, folder / "x.pt2", {.sizes = {{"rows", "columns"}}});
  auto archive = read_back(folder / "x.pt2");
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{1, 1}, {4, 6}, {100, 3}}) {
    const at::Tensor x = at::rand(shape);
    CHECK(at::equal(archive->forward({x}).at(0), body(x)));
  }
}

}  // namespace write_pt2_test
}  // namespace sfsdp

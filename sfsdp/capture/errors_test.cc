// SPDX-License-Identifier: BSD-3-Clause
// What cannot be captured is refused with a message that names the op, the module and a way out.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/embedding.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "sfsdp/base/error.h"
#include "sfsdp/capture/capture_step.h"
#include "sfsdp/capture/meta_init.h"
#include "sfsdp/exec/reference/reference_executor.h"

namespace sfsdp::capture {
namespace errors_test {

using at::Tensor;

// x -> what `body` makes of x · weight; the parameter gives the ops of `body` the path "blocks.gate".
struct GateImpl : torch::nn::Module {
  GateImpl() : weight(register_parameter("weight", at::ones({4}))) {}
  Tensor weight;
};
struct BlocksImpl : torch::nn::Module {
  BlocksImpl() : gate(register_module("gate", std::make_shared<GateImpl>())) {}
  std::shared_ptr<GateImpl> gate;
};
struct NetImpl : torch::nn::Module {
  NetImpl() : blocks(register_module("blocks", std::make_shared<BlocksImpl>())) {}
  std::shared_ptr<BlocksImpl> blocks;
  Tensor scale = register_parameter("scale", at::ones({}));  // of the root: read last, so ops after it have no path
};

using Body = std::function<Tensor(const Tensor&)>;

std::string error_of(const Body& body) {
  auto net = std::make_shared<NetImpl>();
  const auto state = take_state(*net);
  const auto loss = [&](const Batch& batch) {
    return LossValue{body(batch[0] * net->blocks->gate->weight).mean() * net->scale, {}};
  };
  try {
    capture_step(*net, state, loss, {at::ones({3, 4})}, {});
  } catch (const UserError& error) {
    return error.what();
  }
  return "captured";
}

void expect_error(const Body& body, const std::vector<std::string>& parts) {
  const std::string message = error_of(body);
  CAPTURE(message);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(message.find(part) != std::string::npos);
  }
}

TEST_CASE("a body that only computes is captured") {
  CHECK(error_of([](const Tensor& x) { return at::where(x > 0, x, -x); }) == "captured");
}

TEST_CASE("reading a value is refused: item, a branch, a loop bound") {
  const std::vector<std::string> parts = {"aten._local_scalar_dense at blocks.gate", "tensor of shape []",
                                          ".item(), a condition", "torch::where", "pass it in the batch"};
  expect_error([](const Tensor& x) { return x * x.sum().item<float>(); }, parts);
  expect_error([](const Tensor& x) { return x.mean().item<float>() > 0 ? x : -x; }, parts);
  expect_error([](const Tensor& x) { return at::any(x > 0).is_nonzero() ? x : -x; }, parts);
  expect_error([](const Tensor& x) { return x.narrow(0, 0, at::argmax(x).item<int64_t>()); }, parts);
}

TEST_CASE("a shape that depends on data is refused") {
  const std::vector<std::string> parts = {" at blocks.gate", "shape that depends on data", "torch::where", "topk"};
  const auto expect = [&](const std::string& op, const Body& body) {
    auto all = parts;
    all.push_back(op);
    expect_error(body, all);
  };
  expect("aten.nonzero", [](const Tensor& x) { return at::nonzero(x).to(at::kFloat); });
  expect("aten.masked_select", [](const Tensor& x) { return at::masked_select(x, x > 0); });
  expect("aten._unique2", [](const Tensor& x) { return std::get<0>(at::_unique2(x)); });
  expect("aten.unique_dim", [](const Tensor& x) { return std::get<0>(at::unique_dim(x, 0)); });
  // Indexing with a mask is nonzero inside.
  expect("aten.index.Tensor", [](const Tensor& x) { return x.index({x > 0}); });
  expect("it calls aten.nonzero", [](const Tensor& x) { return x.index({x > 0}); });
}

TEST_CASE("an op without a shape function is refused, by the name that the user wrote") {
  expect_error([](const Tensor& x) { return at::multinomial(x.abs(), 1).to(at::kFloat); },
               {"aten.multinomial at blocks.gate", "no shape function", "pass it in the batch", "meta_kernels.cc"});
  // A composite: named as the user called it, and the op in it that has none.
  expect_error([](const Tensor& x) { return at::abs(at::fft_rfft(x)); },
               {"aten._fft_r2c at blocks.gate", "no shape function"});
}

TEST_CASE("an op of the backward pass is refused at the module of its forward op") {
  const auto body = [](const Tensor& x) {
    const Tensor samples = at::ones({1, 3, 3}).mul(0.5);
    return std::get<0>(
        at::fractional_max_pool3d(x.view({1, 3, 4, 1, 1}).expand({1, 3, 4, 3, 3}), {1, 1, 1}, {2, 2, 2}, samples));
  };
  expect_error(body, {"aten.fractional_max_pool3d_backward at blocks.gate", "no shape function"});
}

// x, and the step that `body` makes of it run on `data`.
std::string error_of_run(const Body& body, const Tensor& data) {
  auto net = std::make_shared<NetImpl>();
  const auto state = take_state(*net);
  const auto loss = [&](const Batch& batch) {
    return LossValue{body(batch[0] * net->blocks->gate->weight).mean() * net->scale, {}};
  };
  const CapturedStep step = capture_step(*net, state, loss, {data}, {});
  exec::ReferenceExecutor executor(step.graph, step.constants, {}, {}, exec::Rng::Eager);
  for (const StateTensor& s : state) executor.state[s.name] = s.value;
  try {
    executor.run({{data}}, {});
  } catch (const UserError& error) {
    return error.what();
  }
  return "ran";
}

TEST_CASE("a product of two dtypes is refused as eager refuses it, with op, module path, dtypes and what to do") {
  const auto refuses = [](const std::string& op, const std::string& types, const Body& body) {
    CHECK_THROWS_AS(body(at::ones({3, 4})), c10::Error);
    expect_error(body, {op + " at blocks.gate is given " + types, "expected the same dtype of all", ".to("});
  };
  const Tensor w = at::ones({5, 4}).to(at::kBFloat16), stack = at::ones({3, 4, 5}).to(at::kBFloat16);
  refuses("aten.mm", "f32[3, 4] and bf16[4, 5]", [&](const Tensor& x) { return at::linear(x, w); });
  refuses("aten.mm", "f32[3, 4] and bf16[4, 5]", [&](const Tensor& x) { return at::linear(x.unsqueeze(0), w); });
  refuses("aten.bmm", "f32[3, 1, 4] and bf16[3, 4, 5]",
          [&](const Tensor& x) { return at::bmm(x.unsqueeze(1), stack); });
  refuses("aten.convolution", "f32[3, 4, 1] and bf16[5, 4, 1]",
          [&](const Tensor& x) { return at::conv1d(x.unsqueeze(2), w.unsqueeze(2)); });
  CHECK(error_of([&](const Tensor& x) { return at::linear(x, w.to(at::kFloat)); }) == "captured");
}

TEST_CASE("comparing two tensors of one shape takes them as different, and the step checks that they are") {
  CHECK(error_of([](const Tensor& x) { return at::equal(x, x) ? x : throw std::logic_error("the same value"); }) ==
        "captured");
  CHECK(error_of([](const Tensor& x) { return at::equal(x, x[0]) ? x : -x; }) == "captured");
  const Body compare = [](const Tensor& x) { return at::equal(x, x * 2) ? x : -x; };
  CHECK(error_of_run(compare, at::ones({3, 4})) == "ran");
  const std::string message = error_of_run(compare, at::zeros({3, 4}));
  CAPTURE(message);
  for (const char* part : {" at blocks.gate", "torch::equal", "pass one tensor for both"})
    CHECK(message.find(part) != std::string::npos);
  expect_error(
      [](const Tensor& x) {
        Tensor y = x;
        while (!at::equal(y, y * 0.5)) y = y * 0.5;
        return y;
      },
      {"aten.equal at blocks.gate", "reads the value", "torch::where"});
}

TEST_CASE("what the kernel refuses at run time is said with op, module path and what it got") {
  const std::string message = error_of_run(
      [](const Tensor& x) { return at::embedding(x, x.detach().to(at::kLong).select(1, 0) + 5); }, at::ones({3, 4}));
  CAPTURE(message);
  for (const char* part : {"aten.embedding at blocks.gate", "i64[3]", "out of range", "expected data"})
    CHECK(message.find(part) != std::string::npos);
  CHECK(message.find("frame #") == std::string::npos);
}

TEST_CASE("sparse gradients are refused") {
  const Tensor ids = at::tensor({0, 2}, at::kLong);
  expect_error([&](const Tensor& x) { return at::embedding(x, ids, -1, false, /*sparse=*/true); },
               {" at blocks.gate", "Sparse tensor of shape [3, 4]", "sparse(false)"});
}

TEST_CASE("an error that autograd throws is said without its stack") {
  const std::string message = error_of([](const Tensor& x) {
    Tensor y = x.exp();
    y.detach().add_(1);
    return y;
  });
  CAPTURE(message);
  CHECK(message.find("modified by an inplace operation") != std::string::npos);
  CHECK(message.find("expected") != std::string::npos);
  CHECK(message.find("frame #") == std::string::npos);
}

// A step's error where the loss is `loss` of (net, batch).
std::string error_of_loss(const std::function<Tensor(NetImpl&, const Batch&)>& loss, const Batch& example,
                          bool trainable = true) {
  auto net = std::make_shared<NetImpl>();
  for (Tensor& p : net->parameters()) p.set_requires_grad(trainable);
  const auto state = take_state(*net);
  try {
    capture_step(*net, state, [&](const Batch& b) { return LossValue{loss(*net, b), {}}; }, example, {});
  } catch (const UserError& error) {
    return error.what();
  }
  return "captured";
}

TEST_CASE("a step that trains nothing, or writes parameters itself, is refused by name") {
  struct Refusal {
    std::vector<std::string> parts;
    std::function<Tensor(NetImpl&, const Batch&)> loss;
    Batch example = {at::ones({3, 4})};
    bool trainable = true;
  };
  const auto plain = [](NetImpl& net, const Batch& b) { return (b[0] * net.blocks->gate->weight).sum() * net.scale; };
  const Refusal refusals[] = {
      {{"no trainable parameter", "NetImpl", "requires_grad"}, plain, {at::ones({3, 4})}, false},
      {{"the loss has no gradient", "detach()"}, [](NetImpl&, const Batch& b) { return b[0].sum(); }},
      {{"the loss has no gradient"}, [&](NetImpl& net, const Batch& b) { return plain(net, b).detach(); }},
      {{"tensor 1 of the batch is undefined", "2 dense tensors"}, plain, {at::ones({3, 4}), Tensor()}},
      {{"parameter blocks.gate.weight is written in forward by aten.mul.Scalar at blocks.gate", "register_buffer"},
       [&](NetImpl& net, const Batch& b) {
         at::NoGradGuard no_grad;
         net.blocks->gate->weight.add_(net.scale).mul_(0.9);
         at::AutoGradMode grad(true);
         return plain(net, b);
       }},
      {{"parameter blocks.gate.weight is written in forward by aten.as_strided_scatter", "register_buffer"},
       [&](NetImpl& net, const Batch& b) {
         const Tensor loss = plain(net, b);
         at::NoGradGuard no_grad;
         net.blocks->gate->weight[0].zero_();
         return loss;
       }},
  };
  CHECK(error_of_loss(plain, {at::ones({3, 4})}) == "captured");
  for (const Refusal& r : refusals) {
    const std::string message = error_of_loss(r.loss, r.example, r.trainable);
    CAPTURE(message);
    for (const std::string& part : r.parts) {
      CAPTURE(part);
      CHECK(message.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("an embedding with max_norm writes its weight in forward") {
  struct Lookup : torch::nn::Module {
    torch::nn::Embedding rows =
        register_module("rows", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 4).max_norm(1.0)));
  };
  auto net = std::make_shared<Lookup>();
  const auto state = take_state(*net);
  const auto loss = [&](const Batch& b) { return LossValue{net->rows->forward(b[0]).sum(), {}}; };
  CHECK_THROWS_WITH_AS(capture_step(*net, state, loss, {at::tensor({1, 2}, at::kLong)}, {}),
                       doctest::Contains("parameter rows.weight is written in forward by aten.embedding_renorm at rows"
                                         "\n  expected without max_norm"),
                       UserError);
}

TEST_CASE("the host cannot reach a traced tensor's memory") {
  // at::tensor fills a buffer through its data pointer, and in a trace that buffer is meta.
  expect_error(
      [](const Tensor& x) {
        return x * at::tensor({1.0f, 2.0f, 3.0f, 4.0f});
      },
      {"memory of a tensor", " at blocks.gate", "torch::tensor"});
  expect_error([](const Tensor& x) { return x * x.data_ptr<float>()[0]; }, {"memory of a tensor", "data_ptr"});
}

TEST_CASE("giving a tensor other memory is refused") {
  expect_error([](const Tensor& x) { return (x.detach() * 2).resize_({30}); },
               {"aten.resize_ at blocks.gate", "other memory", "final shape"});
}

TEST_CASE("an in-place op without a functional form is refused") {
  const auto body = [](const Tensor& x) {
    Tensor out = at::empty_like(x);
    at::add_out(out, x.detach(), x.detach());
    return out;
  };
  expect_error(body, {"aten.add.out at blocks.gate", "no functional form", "returns a new tensor"});
}

TEST_CASE("writing into a tensor from outside of the step is refused, reading it is not") {
  Tensor table = at::ones({4});
  expect_error([&](const Tensor& x) { return table.copy_(x[0].detach()) * x; },
               {"aten.copy_ at blocks.gate", "from outside of the captured step", "register_buffer"});
  CHECK(error_of([&](const Tensor& x) { return x * table; }) == "captured");
}

TEST_CASE("what LibTorch refuses is said with op and module path") {
  expect_error([](const Tensor& x) { return at::mm(x, x); }, {"aten.mm at blocks.gate", "cannot be multiplied"});
}

TEST_CASE("a meta tensor from outside of the step is refused") {
  const Tensor stranger = at::empty({4}, at::TensorOptions(at::kMeta));
  expect_error([&](const Tensor& x) { return x * stranger; },
               {"a meta tensor of shape [4]", "blocks.gate", "register_buffer"});
}

TEST_CASE("a loss that is no number is refused") {
  auto net = std::make_shared<NetImpl>();
  const auto state = take_state(*net);
  const auto loss = [&](const Batch& batch) { return LossValue{batch[0] * net->blocks->gate->weight, {}}; };
  CHECK_THROWS_WITH_AS(capture_step(*net, state, loss, {at::ones({3, 4})}, {}), doctest::Contains("[3, 4]"), UserError);
}

TEST_CASE("a count that is no number is refused") {
  auto net = std::make_shared<NetImpl>();
  const auto state = take_state(*net);
  const auto error_of_count = [&](const std::function<Tensor(const Tensor& x)>& count) -> std::string {
    try {
      capture_step(*net, state,
                   [&](const Batch& b) {
                     return LossValue{b[0].sum() * net->scale, count(b[0])};
                   },
                   {at::ones({3, 4})}, {});
    } catch (const UserError& error) {
      return error.what();
    }
    return "captured";
  };
  CHECK(error_of_count([](const Tensor& x) { return x.gt(0).sum(0, true).sum(1); }) == "captured");  // one element
  for (const auto& [part, count] : std::vector<std::pair<const char*, std::function<Tensor(const Tensor& x)>>>{
           {"the count of the loss is undefined", [](const Tensor&) { return Tensor(); }},
           {"is c64[]", [](const Tensor& x) { return x.sum().to(at::kComplexFloat); }},
           {"is f32[3, 4]", [](const Tensor& x) { return x * 2; }}}) {
    const std::string message = error_of_count(count);
    CAPTURE(message);
    CHECK(message.find(part) != std::string::npos);
    CHECK(message.find("expected one number of targets") != std::string::npos);
  }
}

TEST_CASE("what the loss throws that is no std::exception is said as an error of the step") {
  expect_error([](const Tensor&) -> Tensor { throw 42; }, {" at blocks.gate", "std::exception"});
}

// What take_state says of a module with the buffers a and b, as `make` gives them for a parameter w of shape [4, 4].
std::string error_of_buffers(const std::function<std::pair<Tensor, Tensor>(const Tensor& w)>& make, bool meta) {
  struct Buffers : torch::nn::Module {
    Tensor w = register_parameter("w", at::ones({4, 4}));
  };
  const auto build = [&] {
    auto module = std::make_shared<Buffers>();
    const auto [a, b] = make(module->w);
    module->register_buffer("a", a);
    if (b.defined()) module->register_buffer("b", b);
    return module;
  };
  std::shared_ptr<torch::nn::Module> module;
  if (meta)
    run_meta_init([&] { return module = build(); });
  else
    module = build();
  try {
    return std::to_string(take_state(*module).size()) + " tensors";
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST_CASE("two registered tensors over one memory are refused by name, one tensor registered twice is tied") {
  for (const bool meta : {false, true}) {
    CAPTURE(meta);
    CHECK(error_of_buffers([](const Tensor& w) { return std::pair(w.detach(), Tensor()); }, meta) ==
          "w and a share memory, but the step would hold each by itself\n  expected tensors of their own, such as a"
          " clone(); or one tensor registered under both names, which ties them");
    const auto overlap = [](const Tensor&) {
      const Tensor a = at::zeros({6});
      return std::pair(a.slice(0, 0, 4), a.slice(0, 3, 6));
    };
    CHECK(error_of_buffers(overlap, meta).starts_with("a and b share memory"));
    const auto apart = [](const Tensor&) {
      const Tensor a = at::zeros({6, 2});
      return std::pair(a.slice(0, 0, 3), a.slice(0, 3, 6));
    };
    CHECK(error_of_buffers(apart, meta) == "3 tensors");
    const auto twice = [](const Tensor&) {
      const Tensor a = at::zeros({6});
      return std::pair(a, a);
    };
    CHECK(error_of_buffers(twice, meta) == "2 tensors");
  }
  auto net = std::make_shared<NetImpl>();
  net->blocks->gate->weight.set_data(net->register_parameter("tied", at::ones({4})).detach());
  CHECK_THROWS_WITH_AS(take_state(*net), doctest::Contains("tied and blocks.gate.weight share memory"), UserError);
}

TEST_CASE("a buffer whose member forward gives another tensor is refused, with the update in place") {
  struct Average : torch::nn::Module {
    Tensor weight = register_parameter("weight", at::ones({4}));
    Tensor mean = register_buffer("mean", at::zeros({4}));
  };
  const auto error_of_forward = [](const std::function<void(Average&, const Tensor&)>& forward) -> std::string {
    auto net = std::make_shared<Average>();
    const auto state = take_state(*net);
    const auto loss = [&](const Batch& b) {
      {
        at::NoGradGuard no_grad;
        forward(*net, b[0]);
      }
      return LossValue{((b[0] - net->mean) * net->weight).sum(), {}};
    };
    try {
      capture_step(*net, state, loss, {at::ones({3, 4})}, {});
    } catch (const UserError& error) {
      return error.what();
    }
    return "captured";
  };
  CHECK(error_of_forward([](Average& m, const Tensor& x) { m.mean.mul_(0.5).add_(x.mean(0)); }) == "captured");
  CHECK(error_of_forward([](Average& m, const Tensor& x) {
          const Tensor before = m.mean;
          m.mean.copy_(before * 0.5 + x.mean(0));
        }) == "captured");
  const std::string rebound = error_of_forward([](Average& m, const Tensor& x) { m.mean = m.mean * 0.5 + x.mean(0); });
  CHECK(rebound.starts_with("forward gives the member of buffer mean another tensor"));
  CHECK(rebound.find("mul_") != std::string::npos);
}

TEST_CASE("after a refused capture the next one works") {
  CHECK(error_of([](const Tensor& x) { return x * x.sum().item<float>(); }) != "captured");
  CHECK(error_of([](const Tensor& x) { return x * x.sum(); }) == "captured");
}

}  // namespace errors_test
}  // namespace sfsdp::capture

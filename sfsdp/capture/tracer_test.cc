// SPDX-License-Identifier: BSD-3-Clause
// What a trace looks like, and that running it gives what eager LibTorch gives.
#include "sfsdp/capture/tracer.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "sfsdp/base/check.h"
#include "sfsdp/capture/capture_step.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/random_ops.h"
#include "sfsdp/exec/reference/reference_executor.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"

namespace sfsdp::capture {
namespace tracer_test {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Body = std::function<Tensor(const Tensors&)>;

struct Trace {
  ir::Graph graph;
  Tensors constants;
};

// `body` over inputs %x0, %x1, … of the shapes of `examples`.
Trace trace(const Tensors& examples, const Body& body) {
  Tracer tracer;
  Tensors inputs;
  for (size_t i = 0; i < examples.size(); ++i) {
    Tensor meta = at::empty(examples[i].sizes(), examples[i].options().device(at::kMeta));
    const std::string name = "x" + std::to_string(i);
    ir::Op* op = tracer.graph.add("input", {}, {{name, type_of(meta)}});
    op->section = ir::Section::Init;
    op->attrs["name"] = name;
    tracer.declare(meta, op->result());
    inputs.push_back(meta);
  }
  tracer.run([&] { tracer.graph.outputs.push_back(tracer.value_of(body(inputs))); });
  return {std::move(tracer.graph), std::move(tracer.constants)};
}

// The ops without the inputs, one a line.
std::string text_of(const ir::Graph& graph) {
  std::string text = "\n";
  for (const auto& op : graph.ops())
    if (!op->is("input")) text += ir::print(*op) + "\n";
  return text;
}

// Also that each op's real result has the type that the trace gave it, strides included.
void expect_runs_as_eager(const Tensors& inputs, const Body& body) {
  Tensors copies;
  for (const Tensor& t : inputs) copies.push_back(t.clone());
  const Tensor expected = body(copies);
  const Trace traced = trace(inputs, body);
  INFO(text_of(traced.graph));
  exec::ReferenceExecutor executor(traced.graph, traced.constants, {}, {}, exec::Rng::Eager);
  executor.on_op = [](const ir::Op& op, const Tensors& results) {
    for (size_t i = 0; i < results.size(); ++i) {
      CAPTURE(ir::print(op));
      CHECK(type_of(results[i]) == op.result(static_cast<int>(i))->type());
    }
  };
  const Tensor got = executor.run({inputs}, {})[0];
  CHECK(at::equal(got, expected));
  CHECK(got.strides() == expected.strides());
}

Tensor numbers(at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape), at::kFloat).sub(3).reshape(shape);
}

TEST_CASE("an in-place op is recorded as its functional twin, and readers get the new value") {
  const Trace t = trace({numbers({2, 3})}, [](const Tensors& in) {
    Tensor y = at::neg(in[0]);
    y.mul_(in[0]);
    return at::exp(y);
  });
  CHECK(text_of(t.graph) == R"(
%0 = aten.neg %x0 : f32[2, 3]
%1 = aten.mul.Tensor %0, %x0 : f32[2, 3]
%2 = aten.exp %1 : f32[2, 3]
)");
}

TEST_CASE("a view of a tensor that was updated in place reads the updated tensor") {
  const Trace t = trace({numbers({2, 3})}, [](const Tensors& in) {
    Tensor y = at::neg(in[0]);
    Tensor row = y.select(0, 1);
    y.exp_();
    return at::abs(row);
  });
  CHECK(text_of(t.graph) == R"(
%0 = aten.neg %x0 : f32[2, 3]
%1 = aten.select.int %0 dim=0 index=1 : f32[3]
%2 = aten.exp %0 : f32[2, 3]
%2.view = aten.as_strided %2 size=[3] storage_offset=3 stride=[1] : f32[3]
%3 = aten.abs %2.view : f32[3]
)");
}

TEST_CASE("writing to a view updates the tensor it looks at") {
  const Trace t = trace({numbers({2, 3})}, [](const Tensors& in) {
    Tensor y = at::neg(in[0]);
    y.select(0, 1).exp_();
    return at::abs(y);
  });
  CHECK(text_of(t.graph) == R"(
%0 = aten.neg %x0 : f32[2, 3]
%1 = aten.select.int %0 dim=0 index=1 : f32[3]
%2 = aten.exp %1 : f32[3]
%0.set = aten.as_strided_scatter %0, %2 size=[3] storage_offset=3 stride=[1] : f32[2, 3]
%3 = aten.abs %0.set : f32[2, 3]
)");
}

TEST_CASE("the functional twin of an in-place op is found by its arguments, not by its overload's name") {
  const Trace t = trace({numbers({2, 3})}, [](const Tensors& in) {
    Tensor y = at::neg(in[0]);
    y.pow_(3).pow_(in[0]).transpose_(0, 1);
    return at::exp(y);
  });
  CHECK(text_of(t.graph) == R"(
%0 = aten.neg %x0 : f32[2, 3]
%1 = aten.pow.Tensor_Scalar %0 exponent=3 : f32[2, 3]
%2 = aten.pow.Tensor_Tensor %1, %x0 : f32[2, 3]
%3 = aten.transpose.int %2 dim0=0 dim1=1 : f32[3, 2]{1, 3}
%4 = aten.exp %3 : f32[3, 2]{1, 3}
)");
}

TEST_CASE("mutations and views run as in eager") {
  const Tensors one = {numbers({4, 6})}, two = {numbers({4, 6}), numbers({4, 6}).mul(0.25)};
  SUBCASE("chunks of one product, each activated in place, as recurrent cells do") {
    expect_runs_as_eager(two, [](const Tensors& in) {
      auto gates = at::mm(in[0], in[1].t()).chunk(2, 1);
      gates[0].sigmoid_();
      gates[1].tanh_();
      return at::mm(gates[0], gates[1].t());
    });
  }
  SUBCASE("a transposed tensor keeps its strides when its functional twin would not") {
    expect_runs_as_eager(two, [](const Tensors& in) {
      Tensor y = at::empty_strided({4, 6}, {1, 4});
      y.copy_(in[0]);
      y.add_(in[1]);
      return y.t().view({24});
    });
  }
  SUBCASE("slices, rows and fills") {
    expect_runs_as_eager(two, [](const Tensors& in) {
      Tensor y = at::zeros({4, 6});
      y.slice(1, 0, 3).copy_(in[0].slice(1, 3, 6));
      y[0] = in[1][2];
      y.diagonal().fill_(7);
      y.slice(0, 0, 4, 2).mul_(2);
      return y;
    });
  }
  SUBCASE("a view of a view, written through and read through") {
    expect_runs_as_eager(one, [](const Tensors& in) {
      Tensor y = in[0] * 1;
      Tensor middle = y.slice(1, 1, 5), corner = middle.slice(0, 2, 4);
      corner.add_(100);
      middle.neg_();
      return corner + y.slice(0, 0, 2).slice(1, 1, 5);
    });
  }
  SUBCASE("in-place changes of shape") {
    expect_runs_as_eager(one, [](const Tensors& in) {
      Tensor y = in[0] * 1;
      y.t_().unsqueeze_(1);
      y.mul_(2);
      return y.squeeze_(1) + in[0].t();
    });
    expect_runs_as_eager(one, [](const Tensors& in) {
      Tensor y = in[0].view({4, 3, 2}) * 1;
      y.transpose_(0, 2);
      y.select(1, 0).pow_(2);
      return y.swapaxes_(0, 1).neg_();
    });
  }
}

TEST_CASE("inputs and constants that are written or sliced run as in eager") {
  const Tensors one = {numbers({4, 6})};
  SUBCASE("an input that is updated in place") {
    expect_runs_as_eager(one, [](const Tensors& in) {
      Tensor before = in[0] * 1;
      in[0].select(1, 2).zero_();
      return before - in[0];
    });
  }
  SUBCASE("constants: whole, sliced, transposed, as an index and in a list") {
    const Tensor table = numbers({8, 6}), rows = at::tensor({3, 0}, at::kLong);
    expect_runs_as_eager(one, [&](const Tensors& in) {
      Tensor y = in[0] * table.slice(0, 1, 8, 2) + table.t().slice(0, 0, 4).slice(1, 1, 7);
      return at::cat({y.index({rows}), table}, 0);
    });
  }
  SUBCASE("a constant that is updated between two reads") {
    const Tensor table = numbers({4, 6});
    expect_runs_as_eager(one, [&](const Tensors& in) {
      Tensor own = table.clone();
      Tensor y = in[0] * own;
      own.add_(1);
      return y + own * own.mul_(2) + in[0] * own;
    });
  }
  SUBCASE("a constant that is moved to where the step's tensors are") {
    const Tensor table = at::arange(6);
    expect_runs_as_eager(one, [&](const Tensors& in) {
      Tensor like = table.type_as(in[0]), there = table.to(in[0].device()), both = table.to(in[0].options());
      return in[0] * like + there * both;
    });
  }
  SUBCASE("conjugates are values of their own") {
    expect_runs_as_eager(one, [](const Tensors& in) {
      Tensor z = at::view_as_complex(in[0].reshape({4, 3, 2}));
      return at::view_as_real((z.conj() * z.conj() + z).resolve_conj());
    });
  }
}

TEST_CASE("a tensor made on the cpu is a constant, a number an attribute, a factory call an op") {
  const Tensor table = numbers({3});
  const Trace t = trace({numbers({2, 3})}, [&](const Tensors& in) {
    Tensor y = at::pow(at::mul(in[0], 0.5) + table, 3);
    return y + at::ones({3});
  });
  REQUIRE(t.constants.size() == 1);
  CHECK(at::equal(t.constants[0], table));
  CHECK(text_of(t.graph) == R"(
%0 = aten.mul.Scalar %x0 other=0.5 : f32[2, 3]
%const = constant index=0 : f32[3]
%1 = aten.add.Tensor %0, %const : f32[2, 3]
%2 = aten.pow.Tensor_Scalar %1 exponent=3 : f32[2, 3]
%3 = aten.ones size=[3] : f32[3]
%4 = aten.add.Tensor %2, %3 : f32[2, 3]
)");
}

// beta * p and (1 - beta) * p are of one beta, whatever the host writes into it afterwards.
TEST_CASE("a constant holds what the tensor held at capture") {
  Tensor beta = at::full({3}, 0.25f);
  const Trace t = trace({numbers({3})}, [&](const Tensors& in) {
    const Tensor kept = in[0] * beta;
    return kept + in[0] * (1 - beta);
  });
  beta.fill_(0.5);
  REQUIRE(t.constants.size() == 2);
  CHECK(at::equal(t.constants[0], at::full({3}, 0.25f)));
  CHECK(at::equal(t.constants[1], at::full({3}, 0.75f)));
}

TEST_CASE("views of one constant that are equal are one constant") {
  const Tensor table = numbers({4, 3});
  const Trace t = trace({numbers({2, 3})}, [&](const Tensors& in) {
    return in[0] * table.slice(0, 0, 2) + in[0] * table.slice(0, 0, 2) - table.slice(0, 1, 3);
  });
  CHECK(t.constants.size() == 2);
}

// What a module of noise draws, and a random fill that LibTorch writes as an op of its own.
TEST_CASE("random fills are random ops, which no pass may merge or drop") {
  const Trace t = trace({numbers({3})}, [](const Tensors& in) {
    Tensor a = at::empty({3}), b = at::empty({3});
    return in[0] + a.normal_() + b.normal_() + at::empty({3}).uniform_() + at::empty({3}).bernoulli_(0.5);
  });
  int draws = 0;
  for (const auto& op : t.graph.ops())
    if (ir::is_random(*op)) {
      ++draws;
      CHECK_FALSE(ir::is_pure(*op));
    }
  CHECK(draws == 4);
}

TEST_CASE("what sfsdp says of an aten op's effects is what LibTorch's schemas and tags say") {
  auto& dispatcher = c10::Dispatcher::singleton();
  int seen = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto handle = dispatcher.findSchema(name);
    if (!handle || !name.name.starts_with("aten::")) continue;
    ++seen;
    ir::Op op;
    op.opcode = "aten." + name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    CAPTURE(op.opcode);
    const c10::FunctionSchema& schema = handle->schema();
    if (schema.argumentIndexWithName("dropout_p")) op.attrs["dropout_p"] = 0.5;
    const bool generator = std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
      return argument.type()->isSubtypeOf(*c10::OptionalType::create(c10::GeneratorType::get()));
    });
    const bool random = generator || handle->hasTag(at::Tag::nondeterministic_seeded);
    CHECK(ir::is_random(op) == random);
    const bool stops = name.name.starts_with("aten::_functional_assert_");
    CHECK(ir::is_pure(op) == !(random || schema.is_mutable() || schema.returns().empty() || stops));
  }
  CHECK(seen > 3000);
}

TEST_CASE("a number that the host computed is frozen into the graph, as an attribute that recapturing shows") {
  const auto at_step = [](double step) {
    return text_of(trace({numbers({3})}, [=](const Tensors& in) { return at::mul(in[0], 1.0 / step); }).graph);
  };
  CHECK(at_step(2) == R"(
%0 = aten.mul.Scalar %x0 other=0.5 : f32[3]
)");
  CHECK(at_step(4) != at_step(2));
  CHECK(at_step(2) == at_step(2));
}

// Two linear layers with dropout between, each in a module of its own.
struct LayerImpl : torch::nn::Module {
  LayerImpl() : weight(register_parameter("weight", numbers({3, 3}))) {}
  Tensor forward(const Tensor& x) { return at::dropout(at::relu(at::mm(x, weight)), 0.25, is_training()); }
  Tensor weight;
};
struct StackImpl : torch::nn::Module {
  StackImpl()
      : first(register_module("first", std::make_shared<LayerImpl>())),
        second(register_module("second", std::make_shared<LayerImpl>())) {}
  Tensor forward(const Tensor& x) { return second->forward(first->forward(x)); }
  std::shared_ptr<LayerImpl> first, second;
};

CapturedStep capture_stack(bool training) {
  auto net = std::make_shared<StackImpl>();
  const auto state = take_state(*net);
  CaptureOptions options;
  options.training = training;
  return capture_step(
      *net, state,
      [&](const Batch& b) {
        return LossValue{net->forward(b[0]).sum(), {}};
      },
      {numbers({2, 3})}, options);
}

TEST_CASE("an op stands at the module whose parameter was read last, and a backward op where its forward op stands") {
  const CapturedStep step = capture_stack(true);
  int forward = 0, backward = 0;
  for (const auto& op : step.graph.ops()) {
    CAPTURE(ir::print(*op));
    if (op->section == ir::Section::Fwd) {
      ++forward;
      CHECK(!op->bwd_of);
      CHECK((op->module_path == "first" || op->module_path == "second"));
    }
    if (op->section != ir::Section::Bwd || !op->opcode.starts_with("aten.") || !op->bwd_of) continue;
    ++backward;
    CHECK(op->bwd_of->section == ir::Section::Fwd);
    CHECK(op->module_path == op->bwd_of->module_path);
  }
  CHECK(forward > 8);
  CHECK(backward > 8);
  const auto owner_of = [&](const std::string& opcode) {
    std::vector<std::string> owners;
    for (const auto& op : step.graph.ops())
      if (op->section == ir::Section::Bwd && op->is(opcode))
        owners.push_back((op->bwd_of ? op->bwd_of->opcode.str() : "none") + " at " + op->module_path);
    return owners;
  };
  CHECK(owner_of("aten.threshold_backward") == std::vector<std::string>{"aten.relu at second", "aten.relu at first"});
  CHECK(owner_of("aten.mm") == std::vector<std::string>{"aten.mm at second", "aten.mm at second", "aten.mm at first"});
  CHECK(owner_of("gradient").size() == 2);
}

TEST_CASE("dropout is recorded with its probability and module path, and numbered among the draws of its module") {
  CapturedStep step = capture_stack(true);
  exec::number_random_ops(step.graph);
  std::vector<std::string> draws;
  for (const auto& op : step.graph.ops())
    if (op->is("aten.bernoulli.p")) {
      draws.push_back(op->module_path);
      CHECK(op->attr<double>("p") == 0.75);
      CHECK(op->attr<int64_t>("stream") == 0);
    }
  CHECK(draws == std::vector<std::string>{"first", "second"});
}

// A buffer that forward updates, and batch norm, which writes its statistics without saying so in its schema.
struct CountingImpl : torch::nn::Module {
  CountingImpl()
      : weight(register_parameter("weight", numbers({3}))),
        calls(register_buffer("calls", at::zeros({1}))),
        mean(register_buffer("mean", at::zeros({3}))),
        var(register_buffer("var", at::ones({3}))) {}
  Tensor forward(const Tensor& x) {
    calls.add_(1);
    return at::batch_norm(x * weight, {}, {}, mean, var, is_training(), 0.1, 1e-5, false);
  }
  Tensor weight, calls, mean, var;
};

TEST_CASE("a buffer that forward updates is carried to the next step, with the values of eager") {
  auto net = std::make_shared<CountingImpl>(), eager = std::make_shared<CountingImpl>();
  const Tensor x = numbers({4, 3});
  const auto state = take_state(*net);
  const CapturedStep step = capture_step(*net, state,
                                         [&](const Batch& b) {
                                           return LossValue{net->forward(b[0]).square().sum(), {}};
                                         },
                                         {x}, {});
  CHECK(step.graph.carries.size() == 3);
  exec::ReferenceExecutor executor(step.graph, step.constants, {}, {}, exec::Rng::Eager);
  for (const StateTensor& s : state) executor.state[s.name] = s.value;
  for (int k = 0; k < 3; ++k) {
    const Tensor expected = eager->forward(x).square().sum();
    CHECK(at::equal(executor.run({{x}}, {})[0], expected));
  }
  for (const auto& b : eager->named_buffers()) {
    CAPTURE(b.key());
    CHECK(at::equal(executor.state.at(b.key()), b.value()));
  }
}

TEST_CASE("in eval mode nothing is drawn and nothing runs backward; the module is left as it was") {
  const CapturedStep step = capture_stack(false);
  for (const auto& op : step.graph.ops()) {
    CHECK(!op->is("aten.bernoulli.p"));
    CHECK(op->section != ir::Section::Bwd);
  }
}

// Nothing else reads the types of a graph against what runs.
TEST_CASE("a result that is laid out otherwise than its type is an error, which names the op") {
  const auto says = [](const std::string& op, const std::string& part) {
    const ir::Graph graph = ir::parse_or_throw(
        "graph mesh [] view local\n  %x = input name=x : f32[2, 3]\nfwd:\n  " + op + " at net.norm\n  return %y\n",
        "test.ir");
    exec::ReferenceExecutor executor(graph, {}, {});
    std::string what;
    try {
      executor.run({{numbers({2, 3})}}, {});
    } catch (const InternalError& error) {
      what = error.what();
    }
    CAPTURE(what);
    CHECK(what.find(part) != std::string::npos);
  };
  says("%y = aten.neg %x : f32[2, 3]{1, 2}",
       "aten.neg at net.norm gave result 0 of f32[2, 3]\n  expected f32[2, 3]{1, 2}");
  says("%y = aten.special_i1e %x : f32[3, 2]", "gave result 0 of f32[2, 3]\n  expected f32[3, 2]");
  says("%y = aten.special_i1e %x : f64[2, 3]", "gave result 0 of f32[2, 3]\n  expected f64[2, 3]");
  says("%y, %z = aten.special_i1e %x : f32[2, 3], f32[]", "gave 1 results");
}

TEST_CASE("strides of what has no elements, or of dimensions of size 1, are no difference") {
  const ir::Graph graph = ir::parse_or_throw(R"(
    graph mesh [] view local
      %x = input name=x : f32[1, 3]
      %e = input name=e : f32[0, 3]
    fwd:
      %y = aten.neg %x : f32[1, 3]{7, 1}
      %z = aten.neg %e : f32[0, 3]{5, 9}
      return %y, %z
  )",
                                             "test.ir");
  exec::ReferenceExecutor executor(graph, {}, {});
  CHECK(at::equal(executor.run({{numbers({1, 3}), numbers({0, 3})}}, {})[0], numbers({1, 3}).neg()));
}

// The numbers of seeds below 2^53 are those that runs have drawn since there are random ops.
TEST_CASE("a draw depends on all 64 bits of the seed and on the step, and is as ever below 2^53") {
  const ir::Graph graph = ir::parse_or_throw(
      "graph mesh [] view local\nfwd:\n  %y = aten.rand size=[4] stream=2 : f32[4] at drop\n  return %y\n", "test.ir");
  exec::ReferenceExecutor executor(graph, {}, {});
  const auto draw = [&](uint64_t seed, int64_t step) { return executor.run({{}}, {.step = step, .seed = seed})[0]; };
  const auto is = [&](uint64_t seed, const std::vector<float>& numbers) {
    CHECK(at::equal(draw(seed, 3), at::tensor(numbers)));
  };
  is(7, {0.598557174f, 0.500304639f, 0.569936872f, 0.576681256f});
  is((uint64_t{1} << 53) - 1, {0.698322237f, 0.0120003512f, 0.764652193f, 0.229709789f});
  constexpr uint64_t kLarge = uint64_t{1} << 60, kMost = std::numeric_limits<uint64_t>::max();
  CHECK_FALSE(at::equal(draw(kLarge, 1), draw(kLarge + 1, 1)));
  CHECK_FALSE(at::equal(draw(kMost, 1), draw(kMost - 1, 1)));
  CHECK_FALSE(at::equal(draw(7, int64_t{1} << 60), draw(7, (int64_t{1} << 60) + 1)));
}

}  // namespace tracer_test
}  // namespace sfsdp::capture

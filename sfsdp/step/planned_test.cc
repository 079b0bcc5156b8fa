// SPDX-License-Identifier: BSD-3-Clause
// Steps on the planned executor: the bits of the reference executor, at the plan's addresses.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exec/memory_counter.h"
#include "sfsdp/exec/planned/products.h"
#include "sfsdp/exec/planned/rank_memory.h"
#include "sfsdp/kernels/of_op.h"
#include "sfsdp/plan/copied_bytes.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace planned_test {

using testing::kAdamW, testing::kGlobalBatch, testing::loss_of, testing::make_gpt, testing::make_llama, testing::tokens;

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return down(drop(at::relu(norm(up(x))))); }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(6, 10));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(10));
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(0.5));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(10, 3));
};
TORCH_MODULE(Net);

// Writes halves of an empty tensor, as DeepSeek's rotary embedding does: captured, a half is a copy whose rows lie as far apart as
// those of the whole. Rows are longer than the space that a plan leaves between buffers.
struct HalvesImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = up(x), both = y.new_empty({y.size(0), 4096});
    both.narrow(1, 0, 2048).copy_(y.narrow(1, 2048, 2048));
    both.narrow(1, 2048, 2048).copy_(y.narrow(1, 0, 2048).sin());
    return down(both);
  }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(6, 4096));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(4096, 3));
};
TORCH_MODULE(Halves);

Batch rows_of(int64_t step, int64_t rows) {
  return {at::arange(rows * 6, at::kFloat).add(static_cast<double>(step)).sin().view({rows, 6})};
}
const auto mean_loss = [](Net& m, const Batch& b) { return m->forward(b[0]).square().mean(); };

CompileOptions options_of(ExecutorKind executor, int64_t micro_batches) {
  CompileOptions options;
  options.executor = executor;
  options.max_norm = 0.5;
  options.micro_batches = micro_batches;
  options.seed = 7;
  options.notify = [](const std::string&) {};
  return options;
}

void expect_same_state(const Step& got, const Step& expected) {
  const auto a = got.state_dict(), b = expected.state_dict();
  CHECK(a.size() == b.size());
  for (const auto& [name, value] : a) {
    CAPTURE(name);
    CHECK(at::equal(value, b.at(name)));
  }
}

// Three steps of a model on one rank, on both executors. Returns the planned one.
template <class Model>
Step expect_same_bits() {
  const auto make = [](ExecutorKind executor) {
    const auto loss = [](Model& m, const Batch& b) { return m->forward(b[0]).square().mean(); };
    return compile(meta_init([] { return Model(); }), loss, AdamW{.lr = 1e-2}, rows_of(0, 8),
                   data_parallel(init_device_mesh({{"dp_shard", 1}})), nullptr, options_of(executor, 1));
  };
  Step planned = make(ExecutorKind::Planned), reference = make(ExecutorKind::Reference);
  for (int64_t k = 0; k < 3; ++k) CHECK(planned({rows_of(k, 8)}).loss == reference({rows_of(k, 8)}).loss);
  expect_same_state(planned, reference);
  return planned;
}

// Training on two batch shapes, evaluations in between, state that is replaced, and batches of several parts.
TEST_CASE(
    "the planned executor has the bits of the reference: dropout, running statistics, two shapes, evaluation, loaded "
    "state") {
  for (const int64_t micro_batches : {1, 3}) {
    CAPTURE(micro_batches);
    const auto make = [&](ExecutorKind executor) {
      return compile(meta_init([] { return Net(); }), mean_loss, AdamW{.lr = 1e-2, .weight_decay = 0.1}, rows_of(0, 8),
                     data_parallel(init_device_mesh({{"dp_shard", 1}})), nullptr, options_of(executor, micro_batches));
    };
    Step planned = make(ExecutorKind::Planned), reference = make(ExecutorKind::Reference);
    std::map<std::string, at::Tensor> kept;
    for (int64_t k = 0; k < 8; ++k) {
      std::vector<Batch> batches;
      for (int64_t m = 0; m < micro_batches; ++m) batches.push_back(rows_of(10 * k + m, k % 3 == 2 ? 5 : 8));
      const StepResult got = planned(batches), expected = reference(batches);
      CHECK(got.loss == expected.loss);
      CHECK(got.own_loss == expected.own_loss);
      CHECK(got.grad_norm == expected.grad_norm);
      CHECK(planned.eval(rows_of(k, 8)) == reference.eval(rows_of(k, 8)));
      expect_same_state(planned, reference);
      if (k == 2)
        for (const auto& [name, value] : planned.state_dict()) kept[name] = value.clone();
      if (k == 5) {
        planned.load_state_dict(kept);
        reference.load_state_dict(kept);
      }
    }
  }
}

template <class Make>
void expect_same_on_ranks(Make make, DeviceMesh mesh, DataParallelOptions options, int64_t micro_batches) {
  CAPTURE(to_string(mesh));
  const int64_t ranks = mesh.world_size();
  const auto train = [&](ExecutorKind executor) {
    const auto program =
        compile_program(meta_init(make), loss_of, kAdamW, tokens(0, 0, kGlobalBatch / ranks / micro_batches),
                        data_parallel(mesh, options), options_of(executor, micro_batches));
    return testing::train_on_ranks(program, 3, [&](int64_t step, int64_t rank) {
      return testing::micro_batches_of(step, rank, ranks, micro_batches);
    });
  };
  testing::expect_same_bits(train(ExecutorKind::Planned), train(ExecutorKind::Reference));
}

TEST_CASE("the planned executor has the bits of the reference where a value has gaps between its rows") {
  expect_same_bits<Halves>();
}

// Conjugates and their imaginary parts are views that no op computes.
struct ConjugatesImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor z = at::view_as_complex(up(x).view({-1, 4, 2}));
    const at::Tensor turned = at::view_as_real(z.conj() * z * z).flatten(1), seen = at::imag(z.conj());
    const at::Tensor plain = at::view_as_real(z.conj().resolve_conj()).flatten(1);
    return down(at::cat({turned, seen * 2, at::real(z), plain}, 1));
  }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(6, 8));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(24, 3));
};
TORCH_MODULE(Conjugates);

TEST_CASE("the planned executor has the bits of the reference where values are conjugated or negated lazily") {
  const Step planned = expect_same_bits<Conjugates>();
  int64_t lazy = 0;
  const auto first = planned.program().first();
  for (const auto& op : first->graph.ops()) lazy += op->is("aten._conj", "aten._neg_view") ? 1 : 0;
  CHECK(lazy > 2);
}

// Heads before positions: the product of complex numbers is laid out otherwise than what it turns.
struct TransposedRotaryImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor heads = up(x).view({2, -1, 2, 8}).transpose(1, 2);
    const at::Tensor pairs = at::view_as_complex(heads.reshape({2, 2, -1, 4, 2}));
    const at::Tensor angles = at::arange(heads.size(2) * 4, at::kFloat).view({-1, 4}).mul(0.1);
    const at::Tensor turned = at::view_as_real(pairs * at::polar(at::ones_like(angles), angles)).flatten(3);
    return down(turned.transpose(1, 2).reshape({x.size(0), 16}));
  }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(6, 16));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(16, 3));
};
TORCH_MODULE(TransposedRotary);

TEST_CASE("complex rotary embedding of transposed heads trains, to the same bits on both executors") {
  expect_same_bits<TransposedRotary>();
}

TEST_CASE("the planned executor has the bits of the reference on ranks: FSDP, DDP, HSDP, rows, bf16, stages") {
  expect_same_on_ranks(make_llama, init_device_mesh({{"dp_shard", 2}}), {}, 1);
  expect_same_on_ranks(make_llama, init_device_mesh({{"dp_shard", 3}}), {.layout = ParameterLayout::Dim0}, 2);
  expect_same_on_ranks(make_gpt, init_device_mesh({{"dp_replicate", 2}}), {.mode = DataParallelMode::Replicate}, 1);
  expect_same_on_ranks(make_gpt, init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}),
                       {.mode = DataParallelMode::HybridShard}, 2);
  expect_same_on_ranks(make_llama, init_device_mesh({{"dp_shard", 2}}), {.zero_stage = 1}, 2);
  DataParallelOptions half;
  half.mixed_precision.param_dtype = ir::DType::bf16;
  half.mixed_precision.reduce_dtype = ir::DType::f32;
  expect_same_on_ranks(make_llama, init_device_mesh({{"dp_shard", 2}}), half, 1);
}

// By one library for all, and by each in turn for the next shape.
TEST_CASE("a plan that names other libraries' products trains as the reference does, to rounding") {
  const std::vector<exec::ProductKernel> kernels = exec::product_kernels(ir::DType::f32);
  const auto train = [&](ExecutorKind executor, const std::string& products, bool by_shape) {
    CompileOptions options = options_of(executor, 2);
    options.pipeline.kernels.products = products;
    size_t shapes = 0;
    if (by_shape)
      options.choose_products = [&](const std::vector<ir::ProductShape>& found) {
        passes::ProductTable table;
        for (const ir::ProductShape& shape : found) table[shape] = to_string(kernels[shapes++ % kernels.size()]);
        return table;
      };
    const auto program = compile_program(meta_init(make_gpt), loss_of, kAdamW, tokens(0, 0, kGlobalBatch / 4),
                                         data_parallel(init_device_mesh({{"dp_shard", 2}})), options);
    std::map<std::string, int64_t> named;
    const auto first = program->first();
    for (const auto& op : first->graph.ops())
      if (op->has_attr("product_kernel")) ++named[op->attr<std::string>("product_kernel")];
    CHECK(named.size() == (by_shape ? kernels.size() : products.empty() ? 0 : 1));
    CHECK((program->pass_list().find("products_by_shape=\"f32:") != std::string::npos) == by_shape);
    if (by_shape) program->check_recapture(tokens(0, 0, kGlobalBatch / 4));  // by the same names
    return testing::train_on_ranks(
        program, 3, [&](int64_t step, int64_t rank) { return testing::micro_batches_of(step, rank, 2, 2); });
  };
  const auto expected = train(ExecutorKind::Reference, "", false);
  for (size_t i = 0; i <= kernels.size(); ++i) {
    const bool by_shape = i == kernels.size();
    const std::string products = by_shape || i == 0 ? "" : to_string(kernels[i]);
    CAPTURE(products);
    const auto got = train(ExecutorKind::Planned, products, by_shape);
    for (size_t k = 0; k < got.results.size(); ++k) {
      CHECK(std::abs(got.results[k].loss - expected.results[k].loss) <= 1e-6 * expected.results[k].loss);
      CHECK(std::abs(got.results[k].grad_norm - expected.results[k].grad_norm) <= 5e-6 * expected.results[k].grad_norm);
    }
  }
}

// Four heads of 16, two of which share keys and values.
TEST_CASE("a plan that names sfsdp's attention and loss trains as the reference does, to rounding") {
  const auto make = [] {
    models::Llama3Args args = testing::tiny_llama();
    args.head_dim = 16;
    return models::Llama3(args);
  };
  for (const bool half : {false, true}) {
    CAPTURE(half);
    const int64_t micro_batches = half ? 1 : 2;  // a cast that is added to others is by itself
    const auto train = [&](ExecutorKind executor, const passes::NameKernelsOptions& named_kernels) {
      CompileOptions options = options_of(executor, micro_batches);
      options.pipeline.kernels = named_kernels;
      DataParallelOptions parallel;
      if (half) parallel.mixed_precision.param_dtype = ir::DType::bf16;
      const auto program =
          compile_program(meta_init(make), loss_of, kAdamW, tokens(0, 0, kGlobalBatch / 2 / micro_batches),
                          data_parallel(init_device_mesh({{"dp_shard", 2}}), parallel), options);
      const auto first = program->first();
      std::string named;  // opcodes, but for ops on elements
      int64_t on_elements = 0;
      for (const auto& op : first->graph.ops()) {
        if (!op->has_attr("attention_kernel") && !op->has_attr("row_kernel")) continue;
        if (kernels::point_op_of(*op))
          ++on_elements;
        else if (named.find(op->opcode.str()) == std::string::npos)
          named += concat(op->opcode, " ");
      }
      CHECK((on_elements > 10) == named_kernels.is_any());
      const std::string expected =
          "rms_norm rope sdpa cross_entropy cross_entropy_backward rms_norm_backward sdpa_backward rope_inverse "
          "embedding_backward adamw ";
      CHECK(named == (named_kernels.is_any() ? expected : ""));
      return testing::train_on_ranks(program, 3, [&](int64_t step, int64_t rank) {
        return testing::micro_batches_of(step, rank, 2, micro_batches);
      });
    };
    const auto got = train(ExecutorKind::Planned, {.attention = "sfsdp.flash", .rows = "sfsdp.rows"}),
               expected = train(ExecutorKind::Reference, {});
    for (size_t k = 0; k < got.results.size(); ++k) {
      CHECK(std::abs(got.results[k].loss - expected.results[k].loss) <=
            (half ? 1e-3 : 1e-6) * expected.results[k].loss);
      CHECK(std::abs(got.results[k].grad_norm - expected.results[k].grad_norm) <=
            (half ? 1e-2 : 5e-6) * expected.results[k].grad_norm);
    }
  }
}

// A view of what a chain of ops on elements has made, read by the same kernel, and elsewhere; silu times a copy of itself.
struct ChainsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor a = up(x), g = at::relu(a) * gate(x);
    const at::Tensor q = at::relu(g.view({-1, 4, 8}) * scale).view({x.size(0), 32});
    const at::Tensor y = at::silu(a), z = y * y.detach();
    return down(q + z.unsqueeze(0).squeeze(0) * 0.5) + down(g);
  }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(6, 32));
  torch::nn::Linear gate = register_module("gate", torch::nn::Linear(6, 32));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(32, 3));
  at::Tensor scale = register_parameter("scale", at::linspace(0.5, 1.5, 8));
};
TORCH_MODULE(Chains);

TEST_CASE("chains of ops on elements with views of their own, and silu times itself, train as the reference does") {
  const auto train = [&](ExecutorKind executor, const std::string& rows) {
    CompileOptions options = options_of(executor, 1);
    options.pipeline.kernels.rows = rows;
    const auto loss = [](Chains& m, const Batch& b) { return m->forward(b[0]).square().mean(); };
    Step step = compile(meta_init([] { return Chains(); }), loss, AdamW{.lr = 1e-2}, rows_of(0, 8),
                        data_parallel(init_device_mesh({{"dp_shard", 1}})), nullptr, options);
    std::vector<StepResult> results;
    for (int64_t k = 0; k < 4; ++k) results.push_back(step({rows_of(k, 8)}));
    return results;
  };
  const auto got = train(ExecutorKind::Planned, "sfsdp.rows"), expected = train(ExecutorKind::Reference, "");
  for (size_t k = 0; k < got.size(); ++k) {
    CHECK(std::abs(got[k].loss - expected[k].loss) <= 1e-5 * expected[k].loss);
    CHECK(std::abs(got[k].grad_norm - expected[k].grad_norm) <= 1e-5 * expected[k].grad_norm);
  }
}

TEST_CASE("state stays at its address from step to step, whatever graph runs") {
  Step step =
      compile(meta_init([] { return Net(); }), mean_loss, AdamW{}, rows_of(0, 8),
              data_parallel(init_device_mesh({{"dp_shard", 1}})), nullptr, options_of(ExecutorKind::Planned, 1));
  step(rows_of(0, 8));
  std::map<std::string, const void*> places;
  for (const auto& [name, value] : step.state_dict()) places[name] = value.const_data_ptr();
  step(rows_of(1, 640));  // needs a larger window
  step.eval(rows_of(1, 8));
  for (const auto& [name, value] : step.state_dict()) {
    CAPTURE(name);
    CHECK(value.const_data_ptr() == places.at(name));
  }
}

TEST_CASE("a rank's memory grows in place, begins as zeros, and refuses what the system has not") {
  exec::RankMemory memory;
  std::byte* const window = memory.grow(plan::Region::Window, 5000);
  CHECK(window[4999] == std::byte{0});
  std::memset(window, 7, 5000);
  CHECK(memory.grow(plan::Region::Window, 100) == window);
  CHECK(memory.grow(plan::Region::Window, 50'000'000) == window);
  CHECK(window[4999] == std::byte{7});
  CHECK(window[49'999'999] == std::byte{0});
  CHECK(memory.bytes(plan::Region::Window) >= 50'000'000);
  std::string said;
  try {
    memory.grow(plan::Region::State, int64_t{1} << 50);
  } catch (const UserError& error) {
    said = error.what();
  }
  CHECK(said.find("bytes of region state") != std::string::npos);
}

TEST_CASE("a step asks LibTorch for no memory but that of the numbers that it gives, and of LibTorch's attention") {
  const auto check = [](auto make, const passes::NameKernelsOptions& kernels) {
    const Batch batch = tokens(0, 0, 4);
    CompileOptions options = options_of(ExecutorKind::Planned, 1);
    options.pipeline.kernels = kernels;
    Step step = compile(meta_init(make), loss_of, kAdamW, batch, data_parallel(init_device_mesh({{"dp_shard", 1}})),
                        nullptr, options);
    for (int k = 0; k < 2; ++k) step({batch});
    const exec::Allocations before = exec::all_allocations();
    step({batch});
    const exec::Allocations after = exec::all_allocations();
    int64_t of_attention = 0;  // what LibTorch's own threads ask for, which use no workspace
    for (const auto& op : step.executor(batch)->graph().ops())
      if (op->is("sdpa_backward") && !op->has_attr("attention_kernel")) ++of_attention;
    CHECK(after.count - before.count <= 4 + of_attention);
    CHECK(after.bytes - before.bytes <= 8 * 4 + 128 * of_attention);
  };
  const auto make_wide = [] {
    models::Llama3Args args = testing::tiny_llama();
    args.head_dim = 16;
    return models::Llama3(args);
  };
  check(make_wide, {.attention = "sfsdp.flash", .rows = "sfsdp.rows"});
  check(make_llama, {});
  check(make_gpt, {});
}

TEST_CASE("gradients are made in their buckets, and parameters are read from theirs: nothing is copied, but for rows") {
  const auto make = [] {
    models::Llama3Args args;
    args.dim = 768;
    args.n_layers = 12;  // of fewer, the peak is where the head's gradient is made, which is copied then
    args.n_heads = 12;
    args.n_kv_heads = 4;
    args.hidden_dim = 2048;
    args.vocab_size = 32000;
    return models::Llama3(args);
  };
  const auto copied = [&](const DataParallelOptions& parallel) {
    const auto program = compile_program(meta_init(make), loss_of, kAdamW, tokens(0, 0, 2, 256),
                                         data_parallel(init_device_mesh({{"dp_shard", 2}}), parallel),
                                         options_of(ExecutorKind::Planned, 1));
    const auto variant = program->first();
    return plan::copied_bytes(variant->plan);
  };
  const auto expect_none = [&](const DataParallelOptions& parallel) {
    const plan::CopiedBytes bytes = copied(parallel);
    CHECK(bytes.in == 0);
    CHECK(bytes.out == 0);
  };
  expect_none({});
  expect_none({.mixed_precision = {.param_dtype = ir::DType::bf16, .reduce_dtype = ir::DType::f32}});
  const plan::CopiedBytes rows = copied({.layout = ParameterLayout::Dim0});
  CHECK(rows.in > 0);
  CHECK(rows.out > 0);
}

}  // namespace planned_test
}  // namespace sfsdp

// SPDX-License-Identifier: BSD-3-Clause
// The plans of small models, of every kind that the suite trains, executed by the plan machine: training with 1 and 3
// micro-batches, evaluation and another batch shape, each under 20 schedules.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <string>
#include <vector>

#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/target.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/plans_torch.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace plans_on_machine_test {

using plan::machine::Comparison, testing::kAdamW, testing::loss_of, testing::run_on_machine, testing::tokens;

constexpr int64_t kLength = 4;  // of sequences
constexpr int64_t kVocabulary = 11;

models::Llama3Args llama_args() {
  models::Llama3Args args;
  args.dim = 4;
  args.n_layers = 2;
  args.n_heads = 2;
  args.n_kv_heads = 1;
  args.vocab_size = kVocabulary;
  args.hidden_dim = 6;
  return args;
}

models::GptArgs gpt_args() {
  models::GptArgs args;
  args.dim = 4;
  args.n_layers = 2;
  args.n_heads = 2;
  args.vocab_size = kVocabulary;
  args.max_positions = kLength;
  return args;
}

// Batch norm's running statistics go on from one micro-batch to the next; dropout draws.
struct NormedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return down(drop(at::relu(norm(up(x))))); }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(4, 6));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(6));
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(0.25));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(6, 4));
};
TORCH_MODULE(Normed);

struct Case {
  std::string name;
  std::vector<MeshAxis> mesh = {{"dp_shard", 2}};
  DataParallelOptions parallel = {};
  std::function<void(CompileOptions&)> change = [](CompileOptions&) {};
  bool tied = false;
};

const auto remat = [](passes::RematMode mode) {
  return [mode](CompileOptions& o) {
    o.pipeline.remat.mode = mode;
    o.pipeline.remat.memory_budget = 0.5;
  };
};
const auto chunks = [](CompileOptions& o) { o.pipeline.loss_chunks = 2; };

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {.name = "one rank", .mesh = {{"dp_shard", 1}}},
      {.name = "FSDP of 2"},
      {.name = "FSDP of 3, padded", .mesh = {{"dp_shard", 3}}},
      {.name = "DDP", .mesh = {{"dp_replicate", 2}}},
      {.name = "HSDP 2 x 2", .mesh = {{"dp_replicate", 2}, {"dp_shard", 2}}},
      {.name = "ZeRO 0", .parallel = {.zero_stage = 0}},
      {.name = "ZeRO 1", .parallel = {.zero_stage = 1}},
      {.name = "ZeRO 2 on 2 x 2", .mesh = {{"dp_replicate", 2}, {"dp_shard", 2}}, .parallel = {.zero_stage = 2}},
      {.name = "Dim0", .parallel = {.layout = ParameterLayout::Dim0}},
      {.name = "kept gathered, reduced once", .parallel = {.reshard_after_forward = false, .reduce_once = true}},
      {.name = "small parameters whole", .parallel = {.min_shard_numel = 20}},
      {.name = "bf16 with f32 reductions",
       .parallel = {.mixed_precision = {.param_dtype = ir::DType::bf16, .reduce_dtype = ir::DType::f32}}},
      {.name = "remat full", .change = remat(passes::RematMode::Full)},
      {.name = "remat by op", .change = remat(passes::RematMode::Op)},
      {.name = "remat by budget", .change = remat(passes::RematMode::MemoryBudget)},
      {.name = "loss in chunks", .change = chunks},
      {.name = "tied weights", .tied = true},
      {.name = "tied weights, loss in chunks", .change = chunks, .tied = true},
      {.name = "no overlap", .change = [](CompileOptions& o) { o.pipeline.disable = passes::overlap_passes(); }},
      {.name = "order of graphtrainer, depth 3",
       .change =
           [](CompileOptions& o) {
             passes::set_order(o.pipeline, "graphtrainer");
             o.pipeline.prefetch.depth = 3;
           }},
      {.name = "a plan for GPUs",
       .change =
           [](CompileOptions& o) {
             o.target = cost::target_of(cost::load_machine(testing::source_dir() + "/machines/dgx_h100.toml"));
             o.pipeline.join_products = true;
           }},
  };
  return all;
}

// Training, evaluation and another batch shape. Two steps each.
template <class Model, class Loss>
void check_plans(Model model, Loss loss, const Case& c, int64_t micro_batches,
                 const std::function<Batch(int64_t rows)>& batch) {
  CAPTURE(c.name);
  CAPTURE(micro_batches);
  CompileOptions options;
  options.max_norm = 1.0;
  options.micro_batches = micro_batches;
  options.notify = [](const std::string&) {};
  c.change(options);
  const auto program = compile_program(std::move(model), loss, kAdamW, batch(2),
                                       data_parallel(init_device_mesh(c.mesh), c.parallel), options);
  CHECK(run_on_machine(program->first()) == "");
  CHECK(run_on_machine(program->evaluation(batch(2))) == "");
  CHECK(run_on_machine(program->training(batch(3))) == "");
}

Batch ids(int64_t rows) {
  Batch batch = tokens(0, 0, rows, kLength);
  for (at::Tensor& t : batch) t = t.remainder(kVocabulary);
  return batch;
}

TEST_CASE("plan machine: Llama on every mesh and with every option is what the interpreter computes") {
  for (const Case& c : cases())
    for (const int64_t micro_batches : {1, 3}) {
      const auto make = [&] {
        models::Llama3Args args = llama_args();
        args.tied = c.tied;
        return models::Llama3(args);
      };
      check_plans(meta_init(make), loss_of, c, micro_batches, ids);
    }
}

TEST_CASE("plan machine: GPT on every mesh and with every option is what the interpreter computes") {
  for (const Case& c : cases())
    for (const int64_t micro_batches : {1, 3}) {
      const auto make = [&] {
        models::GptArgs args = gpt_args();
        args.tied = c.tied;
        return models::Gpt(args);
      };
      check_plans(meta_init(make), loss_of, c, micro_batches, ids);
    }
}

TEST_CASE("plan machine: a Llama that tp cuts, vocabulary too, is what the interpreter computes") {
  const auto make = [] {
    models::Llama3Args args = llama_args();
    args.vocab_size = kVocabulary + 1;
    return models::Llama3(args);
  };
  for (const bool by_sequence : {false, true})
    for (const int64_t micro_batches : {1, 3}) {
      CAPTURE(by_sequence);
      CAPTURE(micro_batches);
      const TensorParallel rules =
          tensor_parallel({{"*.wq|wk|wv|w1|w3", Shard(0)}, {"*.wo|w2", Shard(1)}, {"tok_embeddings|output", Shard(0)}},
                          {.sequence_parallel = by_sequence});
      CompileOptions options;
      options.max_norm = 1.0;
      options.micro_batches = micro_batches;
      const auto program =
          compile_program(meta_init(make), loss_of, kAdamW, ids(2),
                          data_parallel(init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), {}, rules), options);
      CHECK(run_on_machine(program->first()) == "");
      CHECK(run_on_machine(program->evaluation(ids(2))) == "");
    }
}

TEST_CASE("plan machine: a Llama whose attention goes round cp is what the interpreter computes") {
  const auto make = [] { return models::Llama3(llama_args()); };
  for (const auto mode : {passes::RematMode::None, passes::RematMode::Full}) {
    CAPTURE(static_cast<int>(mode));
    CompileOptions options;
    options.max_norm = 1.0;
    options.pipeline.remat.mode = mode;
    const Strategy strategy =
        data_parallel(init_device_mesh({{"cp", 3}}), {}, {}, {.rotate_method = RotateMethod::Ring});
    const auto batch = [](int64_t rows) -> Batch {
      return {tokens(0, 0, rows, 6)[0].remainder(kVocabulary), tokens(0, 0, rows, 6)[1].remainder(kVocabulary)};
    };
    const auto program = compile_program(meta_init(make), loss_of, kAdamW, batch(1), strategy, options);
    CHECK(run_on_machine(program->first()) == "");
    CHECK(run_on_machine(program->evaluation(batch(1))) == "");
  }
}

TEST_CASE("plan machine: a Llama whose products are computed part by part beside tp is what the interpreter computes") {
  const auto make = [] {
    models::Llama3Args args = llama_args();
    args.n_kv_heads = 2;
    return models::Llama3(args);
  };
  const TensorParallel rules =
      tensor_parallel({{"*.wq|wk|wv|w1|w3", Shard(0)}, {"*.wo|w2", Shard(1)}},
                      {.sequence_parallel = true, .async_products = AsyncProducts::Everywhere});
  const auto batch = [](int64_t rows) -> Batch {
    return {tokens(0, 0, rows, 6)[0].remainder(kVocabulary), tokens(0, 0, rows, 6)[1].remainder(kVocabulary)};
  };
  for (const auto mode : {passes::RematMode::None, passes::RematMode::Full, passes::RematMode::Op})
    for (const int64_t samples : {1, 2, 3}) {  // of one and three, tokens are cut, which of three do not lie together
      CAPTURE(static_cast<int>(mode));
      CAPTURE(samples);
      CompileOptions options;
      options.max_norm = 1.0;
      options.pipeline.remat.mode = mode;
      const auto program = compile_program(meta_init(make), loss_of, kAdamW, batch(samples),
                                           data_parallel(init_device_mesh({{"tp", 2}}), {}, rules), options);
      CHECK(run_on_machine(program->first()) == "");
      CHECK(run_on_machine(program->evaluation(batch(samples))) == "");
    }
}

TEST_CASE("plan machine: batch norm and dropout, whose state goes on between micro-batches") {
  const auto rows = [](int64_t n) -> Batch {
    return {at::arange(n * 4, at::kFloat).sin().view({n, 4}), at::arange(n).remainder(4)};
  };
  const auto loss = [](Normed& m, const Batch& b) { return at::cross_entropy_loss(m->forward(b[0]), b[1]); };
  for (const Case& c : cases()) {
    if (c.tied || c.name.starts_with("loss in") || c.name.starts_with("bf16")) continue;
    for (const int64_t micro_batches : {1, 3})
      check_plans(meta_init([] { return Normed(); }), loss, c, micro_batches, rows);
  }
}

}  // namespace plans_on_machine_test
}  // namespace sfsdp

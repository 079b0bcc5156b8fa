// SPDX-License-Identifier: BSD-3-Clause
// What passes do to the steps of real models: another order, other collectives, other memory; the same bits.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <tuple>

#include "examples/own_pass/drop_mul_by_one.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace passes_test {

const std::string kMachine = testing::source_dir() + "/machines/dgx_h100.toml";

// Passes to leave out: those that move collectives apart from their waits, and `others`.
std::vector<std::string> without_overlap(std::vector<std::string> others = {}) {
  const auto overlap = passes::overlap_passes();
  others.insert(others.end(), overlap.begin(), overlap.end());
  return others;
}

using testing::kAdamW, testing::kGlobalBatch, testing::loss_of, testing::make_gpt, testing::make_llama,
    testing::sum_of_squares, testing::tokens;

TEST_CASE("passes change nothing, bit for bit: units x order x prefetch x remat") {
  const auto run = [](DeviceMesh mesh, DataParallelOptions options, passes::PipelineOptions pipeline) {
    CompileOptions compile_options;
    compile_options.max_norm = 1.0;
    compile_options.pipeline = std::move(pipeline);
    compile_options.pipeline.checks = passes::Checks::EveryPass;
    const int64_t rows = kGlobalBatch / mesh.world_size();
    auto program = compile_program(meta_init(make_llama), loss_of, kAdamW, tokens(0, 0, rows),
                                   data_parallel(mesh, std::move(options)), compile_options);
    return testing::train_on_ranks(
        program, 4, [&](int64_t step, int64_t rank) { return std::vector<Batch>{tokens(step, rank * rows, rows)}; });
  };
  for (const auto& [mesh, mode] :
       {std::pair(init_device_mesh({{"dp_shard", 3}}), DataParallelMode::FullyShard),
        std::pair(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}), DataParallelMode::HybridShard)})
    for (const std::string units : {"", "layers.*.*", "[tok_embeddings, layers, norm, output]"})
      for (const bool reshard : {true, false}) {
        CAPTURE(to_string(mesh));
        CAPTURE(units);
        CAPTURE(reshard);
        const DataParallelOptions options{.mode = mode, .reshard_after_forward = reshard, .units = units};
        const auto plain =
            run(mesh, options, {.disable = without_overlap({"fold_views", "merge_duplicates", "dead_code"})});
        for (const passes::PipelineOptions& pipeline :
             {passes::PipelineOptions{}, passes::PipelineOptions{.join_products = true},
              passes::PipelineOptions{.remat = {.mode = passes::RematMode::Full}, .join_products = true},
              passes::PipelineOptions{.prefetch = {.depth = 2, .forward = passes::Side::After},
              .sink = {.next = passes::Side::After}},
              passes::PipelineOptions{.prefetch = {.depth = 3, .max_bytes = 8192}},
              passes::PipelineOptions{.prefetch = {.depth = 9, .backward = passes::Side::Before}, .sink = {.depth = 9}},
              passes::PipelineOptions{.remat = {.mode = passes::RematMode::Full}},
              passes::PipelineOptions{.remat = {.mode = passes::RematMode::Op, .save = "sdpa, feed_forward.w2"}},
              passes::PipelineOptions{.remat = {.mode = passes::RematMode::Op, .mm_again = 2},
              .prefetch = {.depth = 2}},
              passes::PipelineOptions{.remat = {.mode = passes::RematMode::Full, .every = 2},
              .disable = without_overlap()},
              passes::PipelineOptions{.remat = {.mode = passes::RematMode::MemoryBudget, .memory_budget = 0.6}},
              passes::PipelineOptions{.remat = {.mode = passes::RematMode::MemoryBudget, .memory_budget = 0.2},
              .disable = without_overlap()}}) {
          const auto reordered = run(mesh, options, pipeline);
          testing::expect_same_bits(reordered, plain);
        }
      }
}

TEST_CASE("buckets of copies change nothing, bit for bit, where parameters are stored one by one") {
  for (const auto& [mesh, mode] :
       {std::pair(init_device_mesh({{"dp_shard", 3}}), DataParallelMode::FullyShard),
        std::pair(init_device_mesh({{"dp_replicate", 3}}), DataParallelMode::Replicate),
        std::pair(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}), DataParallelMode::HybridShard)})
    for (const int64_t stage : {0, 1, 2, 3})
      for (const bool reduce_once : {false, true}) {
        constexpr int64_t kMicroBatches = 2;
        CAPTURE(to_string(mesh));
        CAPTURE(stage);
        CAPTURE(reduce_once);
        const int64_t ranks = mesh.world_size(), rows = kGlobalBatch / ranks / kMicroBatches;
        const DataParallelOptions options{.mode = mode,
                                          .zero_stage = stage,
                                          .mixed_precision = {ir::DType::bf16, ir::DType::f32},
                                          .reduce_once = reduce_once,
                                          .min_shard_numel = 100,
                                          .layout = ParameterLayout::Dim0};
        const auto run = [&](const passes::PipelineOptions& pipeline) {
          CompileOptions compile_options;
          compile_options.max_norm = 1.0;
          compile_options.micro_batches = kMicroBatches;
          compile_options.pipeline = pipeline;
          compile_options.pipeline.checks = passes::Checks::EveryPass;
          auto program = compile_program(meta_init(make_llama), loss_of, kAdamW, tokens(0, 0, rows),
                                         data_parallel(mesh, options), compile_options);
          int64_t collectives = 0;
          const auto first = program->first();
          for (const auto& op : first->graph.ops()) collectives += ir::is_collective(*op);
          return std::pair(collectives, testing::train_on_ranks(program, 3, [&](int64_t step, int64_t rank) {
                             return testing::micro_batches_of(step, rank, ranks, kMicroBatches);
                           }));
        };
        const auto [many, plain] = run({.disable = without_overlap({"copy_buckets", "reshard"})});
        for (const passes::PipelineOptions& pipeline :
             {passes::PipelineOptions{}, passes::PipelineOptions{.disable = without_overlap()},
              passes::PipelineOptions{
                  .remat = {.mode = passes::RematMode::Full}, .prefetch = {.depth = 2}, .sink = {.depth = 2}}}) {
          const auto [few, bucketed] = run(pipeline);
          CHECK(2 * few < many);
          testing::expect_same_bits(bucketed, plain);
        }
      }
}

TEST_CASE("units by cost: the same bits whatever the order, and the curves of units by name") {
  const auto run = [](tune::Wrap wrap, bool keep, bool reorder) {
    CompileOptions options;
    options.max_norm = 1.0;
    options.tune = {.wrap = wrap, .choose_reshard = keep, .machine = kMachine};
    options.pipeline.reshard.keep_last = false;
    if (!reorder) options.pipeline.disable = without_overlap();
    options.pipeline.checks = passes::Checks::EveryPass;
    const int64_t rows = kGlobalBatch / 3;
    auto program = compile_program(meta_init(make_llama), loss_of, kAdamW, tokens(0, 0, rows),
                                   data_parallel(init_device_mesh({{"dp_shard", 3}})), options);
    const auto count_gathers = [&](const Batch& batch) {
      const auto variant = program->training(batch);
      return std::ranges::count_if(variant->graph.ops(),
                                   [](const auto& op) { return ir::collective_kind(*op) == "all_gather"; });
    };
    const int64_t gathers = count_gathers(tokens(0, 0, rows));
    // What was decided holds for other batch shapes.
    CHECK(count_gathers(tokens(0, 0, rows, 10)) == gathers);
    program->check_recapture(tokens(0, 0, rows));
    return std::pair(testing::train_on_ranks(program, 4,
                                             [&](int64_t step, int64_t rank) {
                                               return std::vector<Batch>{tokens(step, rank * rows, rows)};
                                             }),
                     gathers);
  };
  const auto [named, named_gathers] = run(tune::Wrap::Manual, false, false);
  for (const tune::Wrap wrap : {tune::Wrap::Auto, tune::Wrap::Search})
    for (const bool keep : {false, true}) {
      CAPTURE(static_cast<int>(wrap));
      CAPTURE(keep);
      const auto [plain, plain_gathers] = run(wrap, keep, false);
      const auto [ordered, gathers] = run(wrap, keep, true);
      CHECK(gathers == plain_gathers);
      if (keep) CHECK(gathers < run(wrap, false, true).second);
      for (size_t k = 0; k < plain.results.size(); ++k) {
        CHECK(ordered.results[k].loss == plain.results[k].loss);
        CHECK(ordered.results[k].grad_norm == plain.results[k].grad_norm);
        CHECK(std::abs(plain.results[k].loss - named.results[k].loss) <= 1e-6 * named.results[k].loss);
      }
      for (const auto& [name, value] : plain.state) {
        CAPTURE(name);
        CHECK(at::equal(ordered.state.at(name), value));
      }
    }
}

TEST_CASE("remat chosen by cost: the fastest trial that fits, the same curve, found again on other batches") {
  constexpr int64_t kRows = kGlobalBatch / 2;
  const auto compile_with = [](bool choose_remat, tune::Wrap wrap, double memory_gib) {
    CompileOptions options;
    options.max_norm = 1.0;
    options.tune = {.wrap = wrap,
                    .choose_reshard = wrap != tune::Wrap::Manual,
                    .choose_remat = choose_remat,
                    .machine = kMachine,
                    .memory_gib = memory_gib};
    return compile_program(meta_init(make_llama), loss_of, kAdamW, tokens(0, 0, kRows),
                           data_parallel(init_device_mesh({{"dp_shard", 2}})), options);
  };
  const auto train = [](const std::shared_ptr<Program>& program) {
    return testing::train_on_ranks(
        program, 4, [&](int64_t step, int64_t rank) { return std::vector<Batch>{tokens(step, rank * kRows, kRows)}; });
  };
  const auto plain = train(compile_with(false, tune::Wrap::Manual, 0));
  for (const tune::Wrap wrap : {tune::Wrap::Manual, tune::Wrap::Auto, tune::Wrap::Search}) {
    CAPTURE(static_cast<int>(wrap));
    const auto with_room = compile_with(true, wrap, 0)->first();  // which outlives its program
    const auto& roomy = with_room->remat.trials;
    REQUIRE(roomy.size() > 5);
    int64_t least = roomy[0].peak_bytes, most = 0;
    for (const tune::RematTrial& trial : roomy) {
      CHECK(trial.fits);
      least = std::min(least, trial.peak_bytes);
      most = std::max(most, trial.peak_bytes);
    }
    REQUIRE(least < most);
    const double memory_gib = static_cast<double>(least + most) / 2 / (1 << 30);
    const auto program = compile_with(true, wrap, memory_gib);
    const auto variant = program->training(tokens(0, 0, kRows));
    CHECK(std::ranges::any_of(variant->remat.trials, &tune::RematTrial::fits));
    const auto memory = plan::plan_memory(variant->graph);
    CHECK(static_cast<double>(memory.peak()) <= memory_gib * (1 << 30));
    program->training(tokens(0, 0, kRows, 10));
    program->check_recapture(tokens(0, 0, kRows));
    const auto trained = train(program);
    for (size_t k = 0; k < plain.results.size(); ++k)
      CHECK(std::abs(trained.results[k].loss - plain.results[k].loss) <= 1e-6 * plain.results[k].loss);
  }
  CHECK_THROWS_WITH_AS(
      [] {
        CompileOptions options;
        options.tune.choose_remat = true;
        compile_program(meta_init(make_llama), loss_of, kAdamW, tokens(0, 0, kRows),
                        data_parallel(init_device_mesh({{"dp_shard", 2}})), options);
      }(),
      doctest::Contains("has no machine to count costs on"), UserError);
}

TEST_CASE("all-reduces under backward and updates in the order of reductions change nothing, bit for bit") {
  struct Case {
    double max_norm;
    bool skip_non_finite;
  };
  for (const auto& [mesh, mode] :
       {std::pair(init_device_mesh({{"dp_shard", 2}}), DataParallelMode::FullyShard),
        std::pair(init_device_mesh({{"dp_replicate", 3}}), DataParallelMode::Replicate),
        std::pair(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}), DataParallelMode::HybridShard)})
    for (const int64_t micro_batches : {1, 2})
      for (const Case& c : {Case{1.0, true}, Case{0, true}, Case{0, false}}) {
        CAPTURE(to_string(mesh));
        CAPTURE(micro_batches);
        CAPTURE(c.max_norm);
        CAPTURE(c.skip_non_finite);
        const int64_t ranks = mesh.world_size(), rows = kGlobalBatch / ranks / micro_batches;
        const auto run = [&](const passes::PipelineOptions& pipeline) {
          CompileOptions options;
          options.max_norm = c.max_norm;
          options.skip_non_finite = c.skip_non_finite;
          options.micro_batches = micro_batches;
          options.pipeline = pipeline;
          auto program = compile_program(meta_init(make_llama), loss_of, kAdamW, tokens(0, 0, rows),
                                         data_parallel(mesh, {.mode = mode, .min_shard_numel = 100}), options);
          // Gradients' all-reduces that start under backward; waits between an update and the one before it.
          int64_t early = 0, waits = 0, between = 0, updates = 0;
          const auto first = program->first();
          for (const auto& op : first->graph.ops()) {
            early += op->is("all_reduce.start") && op->section == ir::Section::Bwd;
            if (ir::is_wait(*op) && op->section == ir::Section::Clip) ++waits;
            if (!op->is("adamw")) continue;
            if (updates++ > 0) between += waits > 0;
            waits = 0;
          }
          if (pipeline.disable.empty()) {
            CHECK(early > 0);
            const bool free = c.max_norm == 0 && !c.skip_non_finite;
            if (mode != DataParallelMode::FullyShard) CHECK(between == (free ? updates - 1 : 0));
          } else {
            CHECK(early == 0);
          }
          return testing::train_on_ranks(program, 3, [&](int64_t step, int64_t rank) {
            return testing::micro_batches_of(step, rank, ranks, micro_batches);
          });
        };
        const auto plain = run({.disable = without_overlap()}), pipelined = run({});
        testing::expect_same_bits(pipelined, plain);
      }
}

// The oracle of a parameter is a step from the same state where all parameters have its numbers.
TEST_CASE("a parameter of a group is updated as if all had its numbers, bit for bit, however it is stored") {
  const std::vector<ParamGroup> groups = {{"*norm*", 0.0, {}}, {"layers.1.*", {}, 0.25}, {"output*", 0.5, 0.0}};
  const auto numbers_of = [](const std::string& name) {
    const bool norm = name.find("norm") != std::string::npos, slow = name.starts_with("layers.1.");
    if (name.starts_with("output")) return ParamNumbers{0.5, 0};
    return ParamNumbers{norm ? 0 : 0.1, slow ? 0.25 : 1};
  };
  struct Case {
    DeviceMesh mesh;
    DataParallelOptions options;
  };
  const DeviceMesh three = init_device_mesh({{"dp_shard", 3}}),
                   hybrid = init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}});
  const Case cases[] = {{three, {}},
                        {three, {.zero_stage = 0}},
                        {three, {.zero_stage = 1}},
                        {three, {.zero_stage = 2, .reduce_once = true}},
                        {three, {.layout = ParameterLayout::Dim0}},
                        {three, {.min_shard_numel = 100, .units = "[tok_embeddings, layers, norm, output]"}},
                        {hybrid, {.reduce_once = true}}};
  for (const Case& c : cases) {
    CAPTURE(&c - cases);
    const int64_t ranks = c.mesh.world_size(), rows = kGlobalBatch / ranks / 2;
    const auto program = [&](const AdamW& adamw) {
      return compile_program(meta_init(make_llama), loss_of, adamw, tokens(0, 0, rows),
                             data_parallel(c.mesh, c.options), {.max_norm = 1.0, .micro_batches = 2});
    };
    const auto grouped = program({.lr = 1e-2, .weight_decay = 0.1, .groups = groups});
    std::map<std::pair<double, double>, std::shared_ptr<Program>> oracles;
    for (const StoredTensor& t : grouped->tensors()) {
      const ParamNumbers n = numbers_of(t.name);
      auto& oracle = oracles[{n.weight_decay, n.lr_factor}];
      if (!oracle) oracle = program({.lr = 1e-2 * n.lr_factor, .weight_decay = n.weight_decay});
    }
    CHECK(oracles.size() == 5);
    std::vector<std::string> wrong;
    std::mutex mutex;
    testing::run_ranks(static_cast<int>(ranks), [&](comm::CommWorld& world) {
      Step step(grouped, &world);
      for (int64_t k = 0; k < 2; ++k) {
        std::map<std::string, at::Tensor> before;
        for (const auto& [name, value] : step.state_dict()) before[name] = value.clone();
        const auto batches = testing::micro_batches_of(k, world.rank(), ranks, 2);
        step(batches);
        const auto got = step.state_dict();
        for (const auto& [numbers, oracle] : oracles) {
          Step other(oracle, &world);
          other.load_state_dict(before);
          other(batches);
          const std::lock_guard lock(mutex);
          for (const auto& [name, value] : other.state_dict()) {
            const ParamNumbers own = numbers_of(name);
            if (std::pair(own.weight_decay, own.lr_factor) == numbers && !at::equal(got.at(name), value))
              wrong.push_back(name);
          }
        }
      }
    });
    CHECK(join(wrong, " ") == "");
  }
}

// Blocks with numbers, each with a dropout of its own.
struct DropNetImpl : torch::nn::Module {
  DropNetImpl() {
    auto layers = register_module("layers", std::make_shared<torch::nn::Module>());
    for (int i = 0; i < 3; ++i) {
      auto layer = layers->register_module(std::to_string(i), std::make_shared<torch::nn::Module>());
      linears.push_back(layer->register_module("linear", torch::nn::Linear(6, 6)));
      drops.push_back(layer->register_module("drop", torch::nn::Dropout(0.5)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < linears.size(); ++i) x = drops[i](at::silu(linears[i](x)).square());
    return x;
  }
  std::vector<torch::nn::Linear> linears;
  std::vector<torch::nn::Dropout> drops;
};
TORCH_MODULE(DropNet);

// Linear layers around a norm that is spelled in one of three ways; torch::rms_norm, and twice by hand.
struct NormNetImpl : torch::nn::Module {
  explicit NormNetImpl(int way)
      : way_(way),
        weight(register_parameter("weight", torch::ones({6}))),
        before(register_module("before", torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)))),
        linear(register_module("linear", torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)))) {}
  at::Tensor forward(const at::Tensor& batch) {
    const at::Tensor x = before(batch);
    if (way_ == 0) return linear(at::rms_norm(x, {6}, weight, 1e-5));
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor scaled = wide * at::rsqrt(wide.square().mean(-1, true) + 1e-5);
    return linear(way_ == 1 ? (scaled * weight).type_as(x) : weight * scaled.type_as(x));
  }
  int way_;
  at::Tensor weight;
  torch::nn::Linear before, linear;
};
TORCH_MODULE(NormNet);

TEST_CASE("canonical ops: a norm is one op however the model spells it, and computes the same bits") {
  const Batch batch = {at::arange(48, at::kFloat).view({2, 4, 6}).sin()};
  const auto loss = [](auto& module, const Batch& b) { return module->forward(b[0]).to(at::kFloat).square().mean(); };
  for (const auto param_dtype : {std::optional<ir::DType>(), std::optional(ir::DType::bf16)})
    for (int way : {0, 1, 2}) {
      CAPTURE(way);
      CAPTURE(param_dtype.has_value());
      const auto losses = [&](std::vector<std::string> disable) {
        DataParallelOptions options;
        options.mixed_precision.param_dtype = param_dtype;
        CompileOptions compile_options;
        compile_options.pipeline.disable = std::move(disable);
        std::map<std::string, int> ops;  // of the last pass
        compile_options.pipeline.observer = [&](const std::string&, const ir::Graph& graph) {
          ops.clear();
          for (const auto& op : graph.ops()) ++ops[op->opcode];
        };
        Step step = compile(meta_init([&] { return NormNet(way); }), loss, SGD{.lr = 0.1}, batch,
                            data_parallel(init_device_mesh({{"dp_shard", 1}}), options), nullptr, compile_options);
        std::vector<double> numbers;
        for (int k = 0; k < 3; ++k) {
          const StepResult result = step(std::vector<Batch>{batch});
          numbers.insert(numbers.end(), {result.loss, result.grad_norm});
        }
        return std::pair(numbers, ops);
      };
      const auto [with, ops] = losses({});
      const auto [without, plain] = losses({"canonicalise"});
      CHECK(with == without);
      CHECK(plain.at("aten.rsqrt") == 1);
      CHECK(ops.contains("aten.rsqrt") == false);
      for (const char* opcode : {"rms_norm", "rms_norm_backward", "linear", "linear_dw", "linear_dx"})
        CHECK_MESSAGE(ops.contains(opcode), opcode);
    }
}

TEST_CASE("remat draws the same random numbers again") {
  const auto loss = [](DropNet& m, const Batch& b) { return m->forward(b[0]).square().mean(); };
  const Batch batch = {at::arange(48, at::kFloat).view({8, 6}).sin()};
  const auto run = [&](const passes::RematOptions& remat, std::vector<std::string> disable = {}) {
    CompileOptions options;
    options.pipeline.remat = remat;
    options.pipeline.disable = std::move(disable);
    Step step = compile(meta_init([] { return DropNet(); }), loss, SGD{.lr = 0.1}, batch,
                        data_parallel(init_device_mesh({{"dp_shard", 1}})), nullptr, options);
    int64_t draws = 0;
    step.executor(batch)->on_op = [&](const ir::Op& op, const std::vector<at::Tensor>&) {
      draws += op.has_attr("stream") ? 1 : 0;
    };
    std::vector<double> norms;
    for (int k = 0; k < 3; ++k) norms.push_back(step(std::vector<Batch>{batch}).grad_norm);
    return std::pair(norms, draws);
  };
  const auto [plain, draws] = run({});
  CHECK(draws == 3 * 3);
  CHECK(plain[0] > 0);
  CHECK(run({}, {"canonicalise"}).first == plain);
  const auto [full, full_draws] = run({.mode = passes::RematMode::Full});
  CHECK(full == plain);
  CHECK(full_draws > draws);
  const auto [least, least_draws] = run({.mode = passes::RematMode::MemoryBudget, .memory_budget = 0});
  CHECK(least == plain);
  CHECK(least_draws > draws);
  CHECK(run({.mode = passes::RematMode::MemoryBudget, .memory_budget = 0.5}).first == plain);
}

TEST_CASE("logits in chunks of tokens: the same loss, norm and weights up to the order of sums") {
  const auto run = [](auto make, DeviceMesh mesh, const DataParallelOptions& options, int64_t micro_batches,
                      const passes::PipelineOptions& pipeline) {
    CompileOptions compile_options;
    compile_options.max_norm = 1.0;
    compile_options.micro_batches = micro_batches;
    compile_options.pipeline = pipeline;
    const auto ranks = static_cast<int>(mesh.world_size());
    const int64_t rows = kGlobalBatch / ranks / micro_batches;
    auto program = compile_program(meta_init(make), loss_of, SGD{.lr = 0.1}, tokens(0, 0, rows),
                                   data_parallel(mesh, options), compile_options);
    int64_t largest = 0;  // tokens that logits exist for
    const auto first = program->first();
    for (const auto& op : first->graph.ops())
      if (op->is("cross_entropy")) largest = std::max(largest, op->operands[0]->type().dims[0].size);
    const auto trained = testing::train_on_ranks(program, 4, [&](int64_t step, int64_t rank) {
      return testing::micro_batches_of(step, rank, ranks, micro_batches);
    });
    return std::tuple(trained.results, trained.state, largest);
  };
  const auto compare = [&](auto make, DeviceMesh mesh, const DataParallelOptions& options, int64_t micro_batches) {
    CAPTURE(to_string(mesh));
    const int64_t batch_rows = kGlobalBatch / mesh.world_size() / micro_batches * 12;
    const auto [expected, state, whole] = run(make, mesh, options, micro_batches, {});
    CHECK(whole == batch_rows);
    for (const passes::PipelineOptions& pipeline :
         {passes::PipelineOptions{.loss_chunks = 3}, passes::PipelineOptions{.loss_chunks = 7},
          passes::PipelineOptions{.loss_chunks = 4, .remat = {.mode = passes::RematMode::Full}}}) {
      CAPTURE(pipeline.loss_chunks);
      const auto [got, got_state, largest] = run(make, mesh, options, micro_batches, pipeline);
      CHECK(largest == (batch_rows + pipeline.loss_chunks - 1) / pipeline.loss_chunks);
      for (size_t k = 0; k < expected.size(); ++k) {
        CHECK(std::abs(got[k].loss - expected[k].loss) <= 1e-6 * expected[k].loss);
        CHECK(std::abs(got[k].grad_norm - expected[k].grad_norm) <= 1e-6 * expected[k].grad_norm);
      }
      for (const auto& [name, value] : state) {
        CAPTURE(name);
        const double error = std::sqrt(sum_of_squares(got_state.at(name) - value));
        CHECK(error <= 1e-6 * std::sqrt(sum_of_squares(value)));
      }
    }
  };
  compare(make_llama, init_device_mesh({{"dp_shard", 1}}), {}, 1);
  compare(make_llama, init_device_mesh({{"dp_shard", 2}}), {}, 2);
  compare(make_llama, init_device_mesh({{"dp_shard", 2}}), {.reshard_after_forward = false}, 1);
  compare(make_llama, init_device_mesh({{"dp_shard", 3}}), {.layout = ParameterLayout::Dim0}, 1);
  compare(make_llama, init_device_mesh({{"dp_replicate", 2}}), {.mode = DataParallelMode::Replicate}, 1);
  compare(make_gpt, init_device_mesh({{"dp_shard", 2}}), {}, 1);  // the weight is the embedding's
}

// Full of what clean-up passes take away: products by 1, the same computed twice, views of views, a weight that the
// model itself casts. (A view that changes nothing is none already in capture.)
struct WastefulImpl : torch::nn::Module {
  WastefulImpl()
      : up(register_module("up", torch::nn::Linear(6, 10))),
        side(register_module("side", torch::nn::Linear(6, 10))),
        low(register_parameter("low", torch::empty({10, 5}).fill_(0.25))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor left = (up(at::tanh(x)) * 1.0).view({-1, 5, 2});
    const at::Tensor right = side(at::tanh(x)).view({-1, 2, 5}).view({-1, 5, 2});
    const at::Tensor sum = (left + right).view({-1, 10}).to(at::kBFloat16);
    return at::mm(sum, low.to(at::kBFloat16)).to(at::kFloat);
  }
  torch::nn::Linear up, side;
  at::Tensor low;
};
TORCH_MODULE(Wasteful);

Batch rows_of_six(int64_t step, int64_t first, int64_t rows) {
  at::Tensor x = at::empty({rows, 6}), y = at::empty({rows}, at::kLong);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < 6; ++i)
      x.mutable_data_ptr<float>()[r * 6 + i] = std::sin(static_cast<float>((first + r + 2) * (i + 3) + step * 7));
    y.mutable_data_ptr<int64_t>()[r] = (step + first + r) % 5;
  }
  return {x, y};
}

TEST_CASE("clean-up passes and a user's own pass each do something, and change nothing, bit for bit") {
  if (!passes::find_pass("drop_mul_by_one")) register_drop_mul_by_one();
  const auto loss = [](Wasteful& m, const Batch& b) { return at::cross_entropy_loss(m->forward(b[0]), b[1]); };
  const auto run = [&](int64_t world_size, passes::PipelineOptions pipeline, passes::Metrics& did) {
    const int64_t rows = 12 / world_size;
    CompileOptions options{.max_norm = 1.0};
    options.pipeline = std::move(pipeline);
    options.pipeline.checks = passes::Checks::EveryPass;
    auto program = compile_program(meta_init([] { return Wasteful(); }), loss, kAdamW, rows_of_six(0, 0, rows),
                                   data_parallel(init_device_mesh({{"dp_shard", world_size}})), options);
    const auto first = program->first();
    for (const passes::PassReport& report : first->passes)
      for (const auto& [name, count] : report.metrics.counts()) did.add(name, count);
    std::vector<at::Tensor> out;
    testing::run_ranks(static_cast<int>(world_size), [&](comm::CommWorld& world) {
      Step step(program, &world);
      for (int64_t k = 0; k < 4; ++k) {
        const StepResult result = step(rows_of_six(k, world.rank() * rows, rows));
        if (world.rank() == 0) out.push_back(at::full({2}, result.loss, at::kDouble).mul_(result.grad_norm));
      }
      for (const StoredTensor& t : program->tensors()) {
        at::Tensor whole = step.gather(t.name);
        if (world.rank() == 0) out.push_back(whole);
      }
    });
    return out;
  };
  for (const int64_t world_size : {1, 2, 3}) {
    CAPTURE(world_size);
    passes::Metrics did_nothing, did;
    const auto plain =
        run(world_size, {.disable = {"fold_views", "merge_duplicates", "dead_code", "hoist_casts"}}, did_nothing);
    const auto clean =
        run(world_size, {.extra = {{"drop_mul_by_one", {}, passes::ExtraPass::Place::Before, "remat"}}}, did);
    REQUIRE(clean.size() == plain.size());
    for (size_t i = 0; i < plain.size(); ++i) CHECK(at::equal(clean[i], plain[i]));
    for (const std::string name : {"ops_merged", "ops_removed", "views_composed", "products_dropped"}) {
      CAPTURE(name);
      CHECK(did.get(name) > 0);
      CHECK(did_nothing.get(name) == 0);
    }
    CHECK(did.get("gathers_narrowed") == (world_size == 1 ? 0 : 1));
  }
}

TEST_CASE("ranks whose own passes differ are told before the first step, also where the graph is the same") {
  const auto compile_with = [&](std::vector<passes::ExtraPass> extra) {
    CompileOptions options;
    options.pipeline.extra = std::move(extra);
    return compile_program(meta_init(make_llama), loss_of, kAdamW, tokens(0, 0, 2),
                           data_parallel(init_device_mesh({{"dp_shard", 2}})), options);
  };
  const passes::ExtraPass extra{"merge_duplicates", {}, passes::ExtraPass::Place::After, "remat"};
  const std::vector programs = {compile_with({extra}), compile_with({})};
  std::mutex mutex;
  std::vector<std::string> said;
  testing::run_ranks(2, [&](comm::CommWorld& world) {
    try {
      Step step(programs[static_cast<size_t>(world.rank())], &world);
    } catch (const UserError& error) {
      std::lock_guard lock(mutex);
      said.emplace_back(error.what());
    }
  });
  REQUIRE(said.size() == 2);
  for (const std::string& message : said) {
    CHECK(message.find("rank 0 and rank 1 have different passes; first difference, line ") == 0);
    CHECK(message.find("merge_duplicates\n") != std::string::npos);
  }
}

}  // namespace passes_test
}  // namespace sfsdp

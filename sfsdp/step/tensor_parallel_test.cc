// SPDX-License-Identifier: BSD-3-Clause
// Training with weights cut over the axis tp, on ranks that are threads, equals one eager process on the same global batch.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/block_collectives.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace tensor_parallel_test {

namespace nn = torch::nn;
using testing::Case, testing::Reference, testing::eager, testing::expect_parity;

// Two blocks x + w2(relu(w1(x))), biases and all, and a head that is whole on every rank.
struct BlockImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + w2(at::relu(w1(x))); }
  nn::Linear w1 = register_module("w1", nn::Linear(12, 20)), w2 = register_module("w2", nn::Linear(20, 12));
};
TORCH_MODULE(Block);
struct MlpImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return head(second(first(x))); }
  Block first = register_module("first", Block()), second = register_module("second", Block());
  nn::Linear head = register_module("head", nn::Linear(12, 3));
};
TORCH_MODULE(Mlp);

constexpr int64_t kRows = 24;
const AdamW kOptimizer = testing::kParityOptimizer;

Batch rows(int64_t step, int64_t first, int64_t count) {
  const at::Tensor all = at::arange(kRows * 15, at::kFloat).add(7.0 * static_cast<double>(step)).mul(0.37).sin();
  const at::Tensor mine = all.view({kRows, 15}).narrow(0, first, count);
  return {mine.narrow(1, 0, 12).contiguous(), mine.narrow(1, 12, 3).contiguous()};
}
const auto kLoss = [](auto& model, const Batch& b) { return (model->forward(b[0]) - b[1]).square().mean(); };

const TensorParallel kMlpRules = tensor_parallel({{"*.w1", Shard(0)}, {"*.w2", Shard(1)}});
const auto kMakeMlp = [] { return Mlp(); };

TEST_CASE("an MLP cut over tp 2, alone and with FSDP, DDP, micro-batches and ZeRO stages, trains as eager does") {
  const Reference reference = eager(
      kMakeMlp, kLoss, [](int64_t k) { return rows(k, 0, kRows); }, 20);
  const auto check = [&](const Case& c) { return expect_parity(kMakeMlp, kLoss, rows, kRows, c, reference); };
  check({init_device_mesh({{"dp_shard", 1}, {"tp", 2}}), kMlpRules});
  check({init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), kMlpRules});
  check({init_device_mesh({{"tp", 4}}), kMlpRules});
  check({init_device_mesh({{"dp_shard", 3}, {"tp", 2}}), kMlpRules, {}, 2});
  check({init_device_mesh({{"dp_replicate", 2}, {"tp", 2}}), kMlpRules, {}, 3});
  check({init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 2}}), kMlpRules});
  for (const int64_t stage : {0, 1, 2})
    check({init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), kMlpRules, {.zero_stage = stage}, 2});
  check({init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), kMlpRules, {.min_shard_numel = 100}});
}

TEST_CASE(
    "whatever is named, an MLP trains as eager does: what lies otherwise is gathered, cut or added up on the way") {
  const Reference reference = eager(
      kMakeMlp, kLoss, [](int64_t k) { return rows(k, 0, kRows); }, 20);
  const std::vector<TensorParallel> all = {
      tensor_parallel({{"*.w1", Shard(0)}}), tensor_parallel({{"*.w2", Shard(1)}}),
      tensor_parallel({{"*.w1|w2", Shard(0)}}), tensor_parallel({{"*.w1|w2", Shard(1)}}),
      tensor_parallel(
          {{"first.w2", Shard(0)}, {"first.w1.weight", Shard(1)}, {"*.bias", Shard(0)}, {"head", Shard(1)}})};
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == 4) continue;  // head.bias has 3 elements
    CAPTURE(i);
    expect_parity(kMakeMlp, kLoss, rows, kRows, {init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), all[i]}, reference);
  }
  CHECK_THROWS_WITH_AS(compile_program(meta_init(kMakeMlp), kLoss, kOptimizer, rows(0, 0, kRows),
                                       data_parallel(init_device_mesh({{"tp", 2}}), {}, all[4]), {}),
                       doctest::Contains("cuts dimension 0 of head.bias, of size 3, over tp = 2"), UserError);
}

TEST_CASE("ranks that differ along tp alone are to have one batch: others are told, before each step and evaluation") {
  const auto program =
      compile_program(meta_init(kMakeMlp), kLoss, kOptimizer, rows(0, 0, 8),
                      data_parallel(init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), {}, kMlpRules), {});
  testing::run_ranks(4, [&](comm::CommWorld& world) {
    Step step(program, &world);
    const int64_t data_rank = world.rank() / 2;
    const Batch own = rows(0, 4 * world.rank(), 8), shared = rows(0, 8 * data_rank, 8);
    const char* expected = "rank 0 and rank 1 have different samples, by their hash: ";
    CHECK_THROWS_WITH_AS(step(own), doctest::Contains(expected), UserError);
    CHECK_THROWS_WITH_AS(step.eval(own), doctest::Contains(expected), UserError);
    CHECK(std::isfinite(step(shared).loss));
    const Batch late = world.rank() == 3 ? own : shared;
    CHECK_THROWS_WITH_AS(step(late), doctest::Contains("rank 2 and rank 3 have different samples, by their hash: "),
                         UserError);
  });
}

// Masks of what is whole are those of one rank; what is cut is gathered before it is dropped.
struct DroppingImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return head(at::dropout(w2(at::dropout(at::relu(w1(x)), 0.25, is_training())), 0.5, is_training()));
  }
  nn::Linear w1 = register_module("w1", nn::Linear(12, 20)), w2 = register_module("w2", nn::Linear(20, 12)),
             head = register_module("head", nn::Linear(12, 3));
};
TORCH_MODULE(Dropping);

TEST_CASE("dropout over tp draws the masks of one rank") {
  const auto train = [&](const DeviceMesh& mesh, const TensorParallel& rules) {
    const auto program = compile_program(meta_init([] { return Dropping(); }), kLoss, kOptimizer,
                                         rows(0, 0, kRows / (mesh.has("dp_shard") ? mesh.size("dp_shard") : 1)),
                                         data_parallel(mesh, {}, rules), {});
    const Strategy& strategy = program->strategy();
    return testing::train_on_ranks(program, 4, [&](int64_t step, int64_t rank) -> std::vector<Batch> {
      const int64_t count = kRows / strategy.data_ranks();
      return {rows(step, strategy.mesh.group_rank(rank, strategy.data_axes()) * count, count)};
    });
  };
  const testing::Trained one = train(init_device_mesh({{"dp_shard", 1}}), {});
  for (const DeviceMesh& mesh :
       {init_device_mesh({{"tp", 2}}), init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), init_device_mesh({{"tp", 4}})}) {
    CAPTURE(to_string(mesh));
    const testing::Trained got = train(mesh, kMlpRules);
    for (size_t k = 0; k < one.results.size(); ++k)
      CHECK(std::abs(got.results[k].loss - one.results[k].loss) <= 1e-6 * one.results[k].loss);
  }
}

// Row i of the batch is the unit vector i, so the gradient of weight [f, i] is the mask's element [i, f] by a constant. Weights are
// small integers: the loss, a power of two of the sum of what forward kept, has no rounding in whatever order it is added up. `next` is
// the identity, and so is each expert: of what is given to them the loss tells the masks, in the order of the whole batch's rows.
struct MasksImpl : nn::Module {
  //   is_dropped: rows of experts are dropped too
  explicit MasksImpl(bool with_experts = false, bool is_dropped = false)
      : has_experts(with_experts), drops_rows(is_dropped) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& weight : {up->weight, down->weight})
      weight.copy_((at::arange(kOut * kIn).square().mul(37).add(11) % 1021).view({kOut, kIn}));
    next->weight.copy_(at::eye(kOut));
    if (!has_experts) return;
    router = register_buffer(
        "router", at::arange(kExperts * kOut).square().mul(5).remainder(7).view({kOut, kExperts}).to(at::kFloat));
    const auto experts = register_module("experts", std::make_shared<nn::Module>());
    weights = experts->register_parameter("weights", at::eye(kOut).expand({kExperts, kOut, kOut}).contiguous());
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = at::dropout(up(x), 0.5, is_training()) + next(at::dropout(down(x), 0.5, is_training()));
    return has_experts ? y + next(mixture(y.flatten(0, 1)).view(y.sizes())) : y;
  }
  at::Tensor mixture(const at::Tensor& tokens) const {
    const at::Tensor flat = std::get<1>(tokens.matmul(router).topk(kChosen, -1)).flatten();
    const at::Tensor order = flat.argsort(true, 0, false), token = order.floor_divide(kChosen);
    const at::Tensor ends = at::one_hot(flat, kExperts).sum(0).cumsum(0).to(at::kInt);
    at::Tensor rows = tokens.index_select(0, token);
    if (drops_rows) rows = at::dropout(rows, 0.5, is_training());
    return at::zeros_like(tokens).index_add(0, token, at::_grouped_mm(rows, weights, ends));
  }
  static constexpr int64_t kExperts = 4, kChosen = 2;
  bool has_experts, drops_rows;
  at::Tensor router, weights;
  static constexpr int64_t kSamples = 4, kLength = 8, kIn = kSamples * kLength, kOut = 16;
  nn::Linear up = register_module("up", nn::Linear(nn::LinearOptions(kIn, kOut).bias(false))),
             down = register_module("down", nn::Linear(nn::LinearOptions(kIn, kOut).bias(false))),
             next = register_module("next", nn::Linear(nn::LinearOptions(kOut, kOut).bias(false)));
};
TORCH_MODULE(Masks);

struct Drawn {
  bool exchanges = false;  // rows of experts
  std::vector<double> losses;
  std::vector<at::Tensor> masks;  // of each step: up's, then down's, [kOut, kIn], 1/256 where the mask keeps
};

Drawn draw_masks(const DeviceMesh& mesh, const TensorParallel& rules, const ContextParallelOptions& context,
                 const ExpertParallelOptions& expert = {}, bool has_experts = false, bool drops_rows = false) {
  constexpr int64_t kSamples = MasksImpl::kSamples, kIn = MasksImpl::kIn;
  const Strategy strategy = data_parallel(mesh, {}, rules, context, expert);
  const int64_t count = kSamples / strategy.data_ranks();
  const auto samples = [&](int64_t first) -> Batch {
    return {at::eye(kIn).view({kSamples, MasksImpl::kLength, kIn}).narrow(0, first, count).contiguous()};
  };
  const auto mean = [](Masks& m, const Batch& b) { return m->forward(b[0]).mean(); };
  // Weights stay, and the first moment is the gradient.
  const AdamW optimizer{.lr = 0, .beta1 = 0, .weight_decay = 0};
  const auto program = compile_program(Masks(has_experts, drops_rows), mean, optimizer, samples(0), strategy, {});
  const auto variant = program->first();
  CHECK(plan::verify_layouts(variant->graph) == "");
  Drawn drawn;
  drawn.exchanges = std::ranges::any_of(variant->graph.ops(), [](const auto& op) {
    return ir::is_collective(*op) && ir::collective_kind(*op) == "all_to_all_v";
  });
  std::mutex mutex;
  testing::run_ranks(static_cast<int>(mesh.world_size()), [&](comm::CommWorld& world) {
    Step step(program, &world);
    for (int k = 0; k < 3; ++k) {
      const StepResult result = step({samples(mesh.group_rank(world.rank(), strategy.data_axes()) * count)});
      for (const char* name : {"up.weight.exp_avg", "down.weight.exp_avg"}) {
        const at::Tensor mask = step.gather(name).clone();
        std::lock_guard lock(mutex);
        if (world.rank() == 0) drawn.masks.push_back(mask);
      }
      std::lock_guard lock(mutex);
      if (world.rank() == 0) drawn.losses.push_back(result.loss);
    }
  });
  return drawn;
}

TEST_CASE("dropout masks over tp, with cut rows and without, over cp and over both have the bits of one rank") {
  const Drawn one = draw_masks(init_device_mesh({{"dp_shard", 1}}), {}, {});
  REQUIRE(one.masks.size() == 6);
  for (size_t i = 0; i < one.masks.size(); ++i) {
    const at::Tensor kept = one.masks[i].ne(0);
    CHECK(at::equal(one.masks[i], kept.to(at::kFloat).div(256)));
    const auto number = kept.sum().item<int64_t>();  // of 512, each with probability 1/2: 5 deviations are 57
    CHECK(std::abs(number - 256) <= 57);
    for (size_t j = 0; j < i; ++j) CHECK_FALSE(at::equal(one.masks[i], one.masks[j]));
  }
  const std::vector<TensorParallelRule> rules = {{"up|next", Shard(0)}, {"down", Shard(1)}};
  const auto check = [&](std::vector<MeshAxis> axes, const TensorParallel& cuts, bool balanced = true) {
    const DeviceMesh mesh = init_device_mesh(std::move(axes));
    CAPTURE(to_string(mesh));
    CAPTURE(cuts.options.sequence_parallel);
    CAPTURE(balanced);
    const Drawn got = draw_masks(mesh, cuts, {.load_balance = balanced});
    CHECK(got.losses == one.losses);
    REQUIRE(got.masks.size() == one.masks.size());
    for (size_t i = 0; i < one.masks.size(); ++i) CHECK(at::equal(got.masks[i], one.masks[i]));
  };
  for (const bool cut_rows : {true, false}) {
    const TensorParallel cuts = tensor_parallel(rules, {.sequence_parallel = cut_rows});
    check({{"tp", 2}}, cuts);
    check({{"tp", 4}}, cuts);
    check({{"dp_shard", 2}, {"tp", 2}}, cuts);
    for (const bool balanced : {true, false}) {
      check({{"cp", 2}, {"tp", 2}}, cuts, balanced);
      check({{"dp_shard", 2}, {"cp", 2}, {"tp", 2}}, cuts, balanced);
    }
  }
  for (const bool balanced : {true, false}) {
    check({{"cp", 2}}, {}, balanced);
    check({{"cp", 4}}, {}, balanced);
    check({{"dp_replicate", 2}, {"cp", 2}}, {}, balanced);
  }
}

// Rows that are dropped by their place among all are no rank's own, so they are not exchanged.
TEST_CASE("dropout masks over ep, of tokens and of the rows that experts are given, have the bits of one rank") {
  const DeviceMesh single = init_device_mesh({{"dp_shard", 1}});
  const std::vector<TensorParallelRule> rules = {{"up|next", Shard(0)}, {"down", Shard(1)}};
  const Drawn without = draw_masks(single, {}, {});
  for (const DispatchMethod dispatch : {DispatchMethod::Gather, DispatchMethod::Exchange}) {
    const bool drops_rows = dispatch == DispatchMethod::Gather;
    const Drawn one = draw_masks(single, {}, {}, {}, true, drops_rows);
    for (size_t i = 0; i < one.masks.size(); ++i) CHECK(at::equal(one.masks[i].ne(0), without.masks[i].ne(0)));
    for (size_t k = 0; k < one.losses.size(); ++k) CHECK(one.losses[k] != without.losses[k]);
    const auto check = [&](std::vector<MeshAxis> axes, const TensorParallel& cuts = {}) {
      const DeviceMesh mesh = init_device_mesh(std::move(axes));
      CAPTURE(to_string(mesh));
      CAPTURE(drops_rows);
      const Drawn got = draw_masks(mesh, cuts, {}, {.dispatch = dispatch}, true, drops_rows);
      CHECK(got.exchanges == !drops_rows);
      CHECK(got.losses == one.losses);
      REQUIRE(got.masks.size() == one.masks.size());
      for (size_t i = 0; i < one.masks.size(); ++i) CHECK(at::equal(got.masks[i], one.masks[i]));
    };
    check({{"ep", 2}});
    check({{"ep", 4}});
    check({{"cp", 2}, {"ep", 2}});
    check({{"ep", 2}, {"tp", 2}}, tensor_parallel(rules, {.sequence_parallel = true}));
  }
}

TEST_CASE(
    "what a rank has of a weight that tp cuts: a box of it, of which FSDP has a range; loaded whole or as it is") {
  const DeviceMesh mesh = init_device_mesh({{"dp_shard", 2}, {"tp", 2}});
  const auto program =
      compile_program(meta_init(kMakeMlp), kLoss, kOptimizer, rows(0, 0, 12), data_parallel(mesh, {}, kMlpRules), {});
  std::mutex mutex;
  std::map<std::string, int64_t> elements;  // that ranks have, all together
  testing::run_ranks(4, [&](comm::CommWorld& world) {
    Step step(program, &world);
    std::lock_guard lock(mutex);
    const plan::Box box = step.box_of("first.w2.weight");
    CHECK((box.dims == std::vector<Chunk>{{0, 12}, {world.rank() % 2 * 10, 10}}));
    CHECK((step.box_of("first.w2.bias").dims == std::vector<Chunk>{{0, 12}}));
    CHECK_THROWS_WITH_AS(step.range_of("first.w2.weight"), doctest::Contains("Step::box_of"), UserError);
    for (const auto& [name, tensor] : step.state_dict()) {
      CHECK(tensor.numel() == step.box_of(name).flat.length);
      elements[name] += tensor.numel();
    }
  });
  CHECK(elements.at("first.w2.weight") == 20 * 12);
  CHECK(elements.at("first.w2.weight.exp_avg") == 20 * 12);
  CHECK(elements.at("first.w2.bias") == 2 * 12);
  testing::run_ranks(4, [&](comm::CommWorld& world) {
    Step step(program, &world);
    const at::Tensor other = at::arange(20 * 12, at::kFloat).view({12, 20});
    step.load_state_dict({{"second.w2.weight", other}});
    auto mine = step.state_dict().at("first.w1.weight").clone();
    mine.fill_(static_cast<float>(world.rank()));
    step.load_state_dict({{"first.w1.weight", mine}});
    const at::Tensor got = step.gather("second.w2.weight"), ranks = step.gather("first.w1.weight");
    std::lock_guard lock(mutex);
    CHECK(at::equal(got, other));
    CHECK(static_cast<int>(ranks[0][0].item<float>()) % 2 ==
          0);  // of the first along tp; which along dp_shard, says the bucket
    CHECK(static_cast<int>(ranks[19][11].item<float>()) % 2 == 1);
  });
}

TEST_CASE("real weights and evaluation over tp: a rank takes its box, and the loss is eager's") {
  Mlp model, eager_model;
  {
    const at::NoGradGuard no_grad;
    const auto from = model->parameters(), to = eager_model->parameters();
    for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  }
  const double expected = kLoss(eager_model, rows(3, 0, kRows)).item<double>();
  const auto program =
      compile_program(model, kLoss, kOptimizer, rows(0, 0, 12),
                      data_parallel(init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), {}, kMlpRules), {});
  std::mutex mutex;
  testing::run_ranks(4, [&](comm::CommWorld& world) {
    Step step(program, &world);
    const double loss = step.eval(rows(3, world.rank() / 2 * 12, 12));
    const at::Tensor weight = step.gather("second.w2.weight");
    std::lock_guard lock(mutex);
    CHECK(std::abs(loss - expected) <= 1e-6 * expected);
    CHECK(at::equal(weight, eager_model->second->w2->weight));
  });
}

const TensorParallel kLlamaRules = tensor_parallel({{"*.wq|wk|wv|w1|w3", Shard(0)}, {"*.wo|w2", Shard(1)}});

TEST_CASE("a Llama cut over tp 2 trains as eager does; heads and FFN are cut, embedding, head and norms whole") {
  const auto batch = [](int64_t k, int64_t first, int64_t count) { return testing::tokens(k, first, count); };
  const Reference reference = eager(
      testing::make_llama, testing::loss_of, [&](int64_t k) { return batch(k, 0, testing::kGlobalBatch); }, 20);
  const auto check = [&](const Case& c) {
    return expect_parity(testing::make_llama, testing::loss_of, batch, testing::kGlobalBatch, c, reference);
  };
  check({init_device_mesh({{"tp", 2}}), kLlamaRules});
  check({init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), kLlamaRules, {}, 2});
}

TEST_CASE("biases and norms of q and k under tp: gradients of what all heads share are added over it") {
  const auto make = [] {
    models::Llama3Args args = testing::tiny_llama();
    args.qk_norm = args.qkv_bias = true;
    return models::Llama3(args);
  };
  const auto batch = [](int64_t k, int64_t first, int64_t count) { return testing::tokens(k, first, count); };
  const Reference reference = eager(
      make, testing::loss_of, [&](int64_t k) { return batch(k, 0, testing::kGlobalBatch); }, 20);
  for (const DeviceMesh& mesh : {init_device_mesh({{"tp", 2}}), init_device_mesh({{"dp_shard", 2}, {"tp", 2}}),
                                 init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 2}})})
    expect_parity(make, testing::loss_of, batch, testing::kGlobalBatch, {mesh, kLlamaRules}, reference);
}

TEST_CASE("norms that are cut are gathered where they are read, beside FSDP and without it") {
  const auto batch = [](int64_t k, int64_t first, int64_t count) { return testing::tokens(k, first, count); };
  const Reference reference = eager(
      testing::make_llama, testing::loss_of, [&](int64_t k) { return batch(k, 0, testing::kGlobalBatch); }, 20);
  const TensorParallel rules = tensor_parallel({{"*norm", Shard(0)}, {"*.w1|w3", Shard(0)}, {"*.w2", Shard(1)}});
  for (const DeviceMesh& mesh : {init_device_mesh({{"tp", 2}}), init_device_mesh({{"dp_shard", 2}, {"tp", 2}})})
    expect_parity(testing::make_llama, testing::loss_of, batch, testing::kGlobalBatch, {mesh, rules}, reference);
}

TEST_CASE("fewer heads of keys than ranks: what they make is gathered") {
  const auto batch = [](int64_t k, int64_t first, int64_t count) { return testing::tokens(k, first, count); };
  const Reference reference = eager(
      testing::make_llama, testing::loss_of, [&](int64_t k) { return batch(k, 0, testing::kGlobalBatch); }, 20);
  const TensorParallel rules = tensor_parallel({{"*.wq|wk|wv", Shard(0)}, {"*.wo", Shard(1)}});
  expect_parity(testing::make_llama, testing::loss_of, batch, testing::kGlobalBatch,
                {init_device_mesh({{"tp", 4}}), rules}, reference);
}

std::map<std::string, std::string> collectives_of_llama(TensorParallelOptions options) {
  const TensorParallel rules = tensor_parallel(kLlamaRules.rules, options);
  const auto program =
      compile_program(meta_init(testing::make_llama), testing::loss_of, kOptimizer, testing::tokens(0, 0, 4),
                      data_parallel(init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), {}, rules), {});
  const auto variant = program->first();
  return testing::collectives_by_block(variant->graph, "tp");
}

using Counts = std::map<std::string, std::string>;

TEST_CASE("a block of Llama has 2 all_reduces over tp forward and 2 backward, and nothing else") {
  const std::string block = "2 bwd all_reduce, 2 fwd all_reduce";
  CHECK(collectives_of_llama({}) == Counts{{"layers.0", block}, {"layers.1", block}});
}

// The one all_reduce adds the gradients of all norms, which each rank has of its rows. The first norm reads embeddings that are whole. The
// third gather is of what the last block gives: no rule cuts the head, which computes whole rows here, and so does the norm before it.
TEST_CASE("with sequence parallelism a block of Llama has 2 all_gathers and 2 reduce_scatters each way") {
  const std::string back = "2 bwd all_gather, 2 bwd reduce_scatter, ";
  const Counts counts = collectives_of_llama({.sequence_parallel = true});
  CHECK(counts.at("layers.0") == back + "1 fwd all_gather, 2 fwd reduce_scatter");
  CHECK(counts.at("layers.1") == back + "3 fwd all_gather, 2 fwd reduce_scatter");
  CHECK(counts.at("") == "1 bwd all_reduce");
}

const std::vector<Constraint> kConstraints = {constrain("layers.*.attention", Shard(1)),
                                              constrain("norm|tok_embeddings", Replicate())};

// What attention gives is cut in its positions, so that the next sums, which are added to it, are made in parts, and products gather them.
// The first of these sums meets embeddings that are whole, and is whole before it is cut; the last one is read by a norm that is whole.
TEST_CASE("a constraint on attention makes the sums after it reduce_scatters, and products gather what they read") {
  const Counts counts = collectives_of_llama({.constraints = kConstraints});
  const auto forward = [&](const char* block) { return counts.at(block).substr(counts.at(block).find("fwd") - 2); };
  CHECK(forward("layers.0") == "1 fwd all_gather, 1 fwd all_reduce, 1 fwd reduce_scatter");
  CHECK(forward("layers.1") == "2 fwd all_gather, 1 fwd all_reduce, 1 fwd reduce_scatter");
}

TEST_CASE("what is constrained trains as eager does, beside FSDP and sequence parallelism") {
  const auto batch = [](int64_t k, int64_t first, int64_t count) { return testing::tokens(k, first, count); };
  const Reference reference = eager(
      testing::make_llama, testing::loss_of, [&](int64_t k) { return batch(k, 0, testing::kGlobalBatch); }, 20);
  for (const bool by_sequence : {false, true}) {
    const TensorParallel rules =
        tensor_parallel(kLlamaRules.rules, {.sequence_parallel = by_sequence, .constraints = kConstraints});
    for (const DeviceMesh& mesh : {init_device_mesh({{"tp", 2}}), init_device_mesh({{"dp_shard", 2}, {"tp", 2}})})
      expect_parity(testing::make_llama, testing::loss_of, batch, testing::kGlobalBatch, {mesh, rules}, reference);
  }
}

TEST_CASE("sequence parallelism trains as eager does: Llama, with FSDP and micro-batches") {
  const auto batch = [](int64_t k, int64_t first, int64_t count) { return testing::tokens(k, first, count); };
  const Reference reference = eager(
      testing::make_llama, testing::loss_of, [&](int64_t k) { return batch(k, 0, testing::kGlobalBatch); }, 20);
  const TensorParallel rules = tensor_parallel(kLlamaRules.rules, {.sequence_parallel = true});
  for (const Case& c :
       {Case{init_device_mesh({{"tp", 2}}), rules}, Case{init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), rules, {}, 2}})
    expect_parity(testing::make_llama, testing::loss_of, batch, testing::kGlobalBatch, c, reference);
}

TEST_CASE(
    "a compiled Llama says of every value how it lies over tp, in text too; a sum that is left out is found each "
    "time") {
  const auto program =
      compile_program(meta_init(testing::make_llama), testing::loss_of, kOptimizer, testing::tokens(0, 0, 4),
                      data_parallel(init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), {}, kLlamaRules), {});
  const auto variant = program->first();
  const std::string text = ir::print(variant->graph);
  const ir::Graph graph = ir::parse_or_throw(text);
  CHECK(ir::print(graph) == text);
  CHECK(plan::verify_layouts(graph) == "");
  int changed = 0;
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    if (ir::collective_kind(*graph.ops()[i]) != "all_reduce" || !ir::is_start(*graph.ops()[i])) continue;
    const auto axes = ir::axes_of(*graph.ops()[i]);
    if (!axes || std::ranges::find(*axes, "tp") == axes->end()) continue;
    const ir::Graph mutant = graph.clone();
    mutant.ops()[i]->attrs["axis"] = std::string("dp_shard");
    CHECK(plan::verify_layouts(mutant) != "");
    ++changed;
  }
  CHECK(changed == 2 * 4 + 1);  // of two blocks, and of the norm
}

}  // namespace tensor_parallel_test
}  // namespace sfsdp

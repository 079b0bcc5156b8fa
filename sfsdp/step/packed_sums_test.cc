// SPDX-License-Identifier: BSD-3-Clause
// Gradients of small weights that all ranks of tp have are summed over it at once, which gives the bits that a sum a unit gives.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/models/deepseek_v3/deepseek_v3.h"
#include "sfsdp/plan/verify/packed_sums.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace packed_sums_test {

struct Form {
  std::vector<MeshAxis> axes;
  int64_t sums = 1;  // all_reduces over tp of gradients, packed
  DataParallelOptions options = {};
  int64_t micro_batches = 1;
  ExecutorKind executor = ExecutorKind::Planned;
  passes::RematMode remat = passes::RematMode::None;
};

const auto kMakeLlama = [] {
  models::Llama3Args args = testing::tiny_llama();
  args.qk_norm = true;
  args.hidden_dim = 36;
  return models::Llama3(args);
};
const TensorParallel kLlamaRules =
    tensor_parallel({{"*.wq|wk|wv|w1|w3", Shard(0)}, {"*.wo|w2", Shard(1)}}, {.sequence_parallel = true});

// What all-reduces over tp, and maybe others, make that becomes a gradient.
std::set<const ir::Op*> sums_of_gradients(const ir::Graph& graph) {
  std::set<const ir::Op*> sums;
  for (const auto& op : graph.ops()) {
    if (!op->is("gradient")) continue;
    const ir::Op* from = op->operands[0]->producer();
    while (from->is("cast", "mul_scalar", "view", "wait")) from = from->operands[0]->producer();
    const auto axes = ir::axes_of(*from);
    if (ir::collective_kind(*from) == "all_reduce" && axes && std::ranges::find(*axes, "tp") != axes->end())
      sums.insert(from);
  }
  return sums;
}

template <class Make>
void check_same_bits(Make make, const TensorParallel& rules, const Form& form) {
  CAPTURE(to_string(init_device_mesh(form.axes)));
  CAPTURE(form.micro_batches);
  CAPTURE(form.options.zero_stage);
  const Strategy strategy = data_parallel(init_device_mesh(form.axes), form.options, rules);
  std::vector<testing::Trained> trained;
  std::vector<size_t> sums;
  for (const bool packed : {false, true}) {
    CompileOptions options;
    options.max_norm = 1.0;
    options.micro_batches = form.micro_batches;
    options.executor = form.executor;
    options.pipeline.remat.mode = form.remat;
    if (!packed) options.pipeline.disable = {"pack_all_reduces"};
    const auto batches = [&](int64_t step, int64_t rank) {
      return testing::micro_batches_of(step, strategy.mesh.group_rank(rank, strategy.data_axes()),
                                       strategy.data_ranks(), form.micro_batches);
    };
    const auto program =
        compile_program(meta_init(make), testing::loss_of, testing::kAdamW, batches(0, 0)[0], strategy, options);
    const auto variant = program->first();
    CHECK(plan::check_packed_sums(variant->graph) == "");
    sums.push_back(sums_of_gradients(variant->graph).size());
    trained.push_back(testing::train_on_ranks(program, 3, batches));
  }
  testing::expect_same_bits(trained[1], trained[0]);
  CHECK(sums[1] == static_cast<size_t>(form.sums));
  CHECK(sums[0] > sums[1]);
}

TEST_CASE("sums of norms' gradients: one a step has the bits of one a unit, on all kinds of data parallelism") {
  const std::vector<Form> forms = {
      {{{"tp", 2}}},
      {{{"tp", 4}}, 1, {}, 2, ExecutorKind::Reference},
      {{{"dp_shard", 2}, {"tp", 2}}},
      {{{"dp_shard", 3}, {"tp", 2}}, 1, {}, 2, ExecutorKind::Reference},
      {{{"dp_shard", 2}, {"tp", 2}}, 1, {.zero_stage = 0}, 3},
      {{{"dp_shard", 2}, {"tp", 2}}, 1, {.zero_stage = 1}, 2},
      {{{"dp_shard", 2}, {"tp", 2}}, 1, {.zero_stage = 2}, 1, ExecutorKind::Reference},
      {{{"dp_shard", 2}, {"tp", 2}}, 1, {.reduce_once = true}, 3},
      {{{"dp_replicate", 2}, {"tp", 2}}},
      {{{"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 2}}, 1, {}, 2},
      {{{"dp_shard", 2}, {"tp", 2}}, 1, {.min_shard_numel = 1000}},
      {{{"dp_shard", 2}, {"tp", 2}}, 1, {.mixed_precision = {ir::DType::bf16, ir::DType::f32}}, 2},
      {{{"dp_shard", 2}, {"tp", 2}}, 1, {.mixed_precision = {ir::DType::bf16, ir::DType::bf16}}},
      {{{"dp_shard", 2}, {"tp", 2}}, 1, {.mixed_precision = {ir::DType::bf16, ir::DType::bf16}}, 2},
      {{{"cp", 2}, {"tp", 2}}},
      {{{"dp_shard", 2}, {"cp", 2}, {"tp", 2}}, 1, {}, 2, ExecutorKind::Planned, passes::RematMode::Full},
  };
  for (const Form& form : forms) check_same_bits(kMakeLlama, kLlamaRules, form);
}

TEST_CASE("sums of norms' gradients: of a GPT with biases, and of norms of q and k without sequence parallelism") {
  const TensorParallel gpt =
      tensor_parallel({{"*.c_fc", Shard(0)}, {"*.mlp.c_proj", Shard(1)}}, {.sequence_parallel = true});
  check_same_bits(testing::make_gpt, gpt, {{{"dp_shard", 2}, {"tp", 2}}, 1, {}, 2});
  check_same_bits(kMakeLlama, tensor_parallel(kLlamaRules.rules), {{{"dp_shard", 2}, {"tp", 2}}, 1, {}, 2});
}

// Router, latents and norms, beside experts of which each rank has some.
TEST_CASE("sums of norms' gradients: of a mixture over ep and tp") {
  const auto make = [] {
    models::DeepSeekV3Args args;
    args.dim = 24;
    args.inter_dim = 40;
    args.moe_inter_dim = 16;
    args.n_layers = 2;
    args.n_heads = 4;
    args.vocab_size = 29;
    args.q_lora_rank = 12;
    args.kv_lora_rank = 10;
    args.qk_nope_head_dim = 6;
    args.qk_rope_head_dim = 4;
    args.v_head_dim = 5;
    args.num_experts = 8;
    args.num_shared_experts = 1;
    args.top_k = 3;
    args.n_expert_groups = 4;
    args.n_limited_groups = 2;
    return models::DeepSeekV3(args);
  };
  const TensorParallel rules = tensor_parallel({{"*.wq_b|wkv_b", Shard(0)},
                                                {"*.wo", Shard(1)},
                                                {"*.experts.w1|w3", Shard(1)},
                                                {"*.experts.w2", Shard(2)},
                                                {"*.w1|w3", Shard(0)},
                                                {"*.w2", Shard(1)}},
                                               {.sequence_parallel = true});
  check_same_bits(make, rules, {{{"ep", 2}, {"tp", 2}}});
  check_same_bits(make, rules, {{{"dp_shard", 2}, {"ep", 2}, {"tp", 2}}, 1, {}, 2});
}

}  // namespace packed_sums_test
}  // namespace sfsdp

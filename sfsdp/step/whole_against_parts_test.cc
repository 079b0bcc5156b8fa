// SPDX-License-Identifier: BSD-3-Clause
// Captured models, 2 layers, forward, loss and backward: cut over tp, cp, ep and several, beside data axes, micro-batches and recomputation,
// they mean on their ranks what the whole one does, at every value that one module hands to another, not in what a step returns alone. In
// the interpreter, in float64.
#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/strings.h"
#include "sfsdp/models/deepseek_v3/deepseek_v3.h"
#include "sfsdp/models/tensor_parallel_plans.h"
#include "sfsdp/parallel/data_parallel.h"
#include "sfsdp/parallel/model_parallel.h"
#include "sfsdp/passes/memory/remat.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/borders_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace whole_against_parts_test {

constexpr int64_t kKeys = 4;  // heads of keys and values

std::vector<TensorParallelRule> rules_of(const char* plan) {
  std::vector<TensorParallelRule> rules;
  for (const std::string& text : models::tensor_parallel_plan(plan)) {
    const auto equals = text.rfind('=');
    const std::vector<std::string> cut = split(text.substr(equals + 1), ':');
    rules.push_back(
        {text.substr(0, equals), Shard(std::stoll(cut[0]), {.blocks = cut.size() > 1 ? std::stoll(cut[1]) : 1}), true});
  }
  return rules;
}

// Cut by model axes.
testing::PlacedStep placed(const testing::WholeStep& whole, const Strategy& strategy) {
  testing::PlacedStep parts = {whole.graph.clone(), whole.constants, {}};
  parts.graph.view = ir::Graph::View::Local;
  if (strategy.model_axes().empty()) parallel::name_ops(parts.graph);
  parallel::apply_model_parallel(parts.graph, strategy);
  CHECK(plan::verify_layouts(parts.graph) == "");
  for (const auto& op : parts.graph.ops())
    if (op->is("param")) parts.boxes[op->attr<std::string>("name")] = op->result()->type();
  return parts;
}

//   turns: values of the whole that in a ring are one rank's part of a gradient, and stand under no name
void expect_whole(const testing::WholeStep& whole, const char* plan, const std::vector<MeshAxis>& axes,
                  const TensorParallelOptions& tensor, const ContextParallelOptions& context,
                  const ExpertParallelOptions& expert, size_t turns) {
  const DeviceMesh mesh = init_device_mesh(axes);
  const Strategy strategy = data_parallel(
      mesh, {}, mesh.has("tp") ? tensor_parallel(rules_of(plan), tensor) : TensorParallel{}, context, expert);
  CAPTURE(to_string(mesh));
  CAPTURE(tensor.sequence_parallel);
  CAPTURE(tensor.loss_parallel);
  CAPTURE(std::string(to_string(context.rotate_method)));
  CAPTURE(context.load_balance);
  CAPTURE(expert.dispatch == DispatchMethod::Gather);
  const testing::Compared compared =
      testing::compare_borders(whole, placed(whole, strategy), {.mesh = mesh, .balanced = context.load_balance});
  CAPTURE(compared.worst);
  CHECK(compared.most <= 1e-11);
  CHECK(compared.gone == (context.rotate_method == RotateMethod::Ring ? turns : 0));
  CHECK(compared.cut >= 20);
}

//   turns: of all layers, in a ring
void expect_whole_over_tp_and_cp(const testing::WholeStep& whole, const char* plan, size_t turns) {
  CHECK(whole.borders.size() >= 80);
  const auto expect = [&](const std::vector<MeshAxis>& axes, bool rows, bool loss,
                          const ContextParallelOptions& context) {
    const TensorParallelOptions tensor = {.sequence_parallel = rows, .loss_parallel = loss};
    expect_whole(whole, plan, axes, tensor, context, {}, turns);
  };
  for (const int64_t ranks : {2, 4})
    for (const bool rows : {false, true})
      for (const bool loss : {false, true}) expect({{"tp", ranks}}, rows, loss, {});
  using enum RotateMethod;
  for (const RotateMethod method : {AllGather, AllToAll, Ring})
    for (const bool balance : {false, true}) {
      const ContextParallelOptions context = {.load_balance = balance, .rotate_method = method};
      for (const int64_t ranks : {2, 4}) expect({{"cp", ranks}}, false, true, context);
      for (const bool rows : {false, true})
        for (const auto& [cp, tp] : {std::pair<int64_t, int64_t>{2, 2}, {4, 2}, {2, 4}})
          if (method != AllToAll || cp * tp <= kKeys) expect({{"cp", cp}, {"tp", tp}}, rows, balance, context);
    }
}

models::Llama3Args llama_args() {
  models::Llama3Args args = testing::tiny_llama();
  args.vocab_size = 28;
  args.n_heads = 8;
  args.n_kv_heads = kKeys;
  args.hidden_dim = 40;
  return args;
}

const auto kMakeLlama = [] { return models::Llama3(llama_args()); };
const auto kMakeQwen = [] {
  models::Llama3Args args = llama_args();
  args.qk_norm = args.tied = true;
  return models::Llama3(args);
};
const auto kMakeGpt = [] {
  models::GptArgs args = testing::tiny_gpt();
  args.vocab_size = 28;
  args.max_positions = 18;
  return models::Gpt(args);
};

models::DeepSeekV3Args mixture_args() {
  models::DeepSeekV3Args args;
  args.dim = 24;
  args.inter_dim = 40;
  args.moe_inter_dim = 48;  // on four ranks rows of multiples of 16 bytes
  args.n_layers = 2;
  args.n_heads = 8;
  args.vocab_size = 28;
  args.q_lora_rank = 12;
  args.kv_lora_rank = 10;
  args.qk_nope_head_dim = 6;
  args.qk_rope_head_dim = 4;
  args.v_head_dim = 5;
  args.num_experts = 8;
  args.num_shared_experts = 1;
  args.top_k = 3;
  args.score_func = models::RouterScore::Sigmoid;
  args.route_norm = true;
  args.route_scale = 2.5;
  args.n_expert_groups = 4;
  args.n_limited_groups = 2;
  return args;
}
const auto kMakeMixture = [] { return models::DeepSeekV3(mixture_args()); };

TEST_CASE("whole against parts: DeepSeek-V3") {
  expect_whole_over_tp_and_cp(testing::whole_of(kMakeMixture), "deepseek_v3", 2);
}
// Rooms and further rounds, which are made after the cut, stand in passes/memory/further_rounds_test.cc.
TEST_CASE("whole against parts: DeepSeek-V3, experts on ranks of their own") {
  const testing::WholeStep whole = testing::whole_of(kMakeMixture);
  const std::vector<std::vector<MeshAxis>> meshes = {
      {{"ep", 2}}, {{"ep", 2}, {"tp", 2}}, {{"cp", 2}, {"ep", 2}}, {{"cp", 2}, {"ep", 2}, {"tp", 2}}};
  for (const DispatchMethod dispatch : {DispatchMethod::Gather, DispatchMethod::Exchange})
    for (const auto& axes : meshes)
      for (const bool rows : {false, true}) {
        TensorParallelOptions tensor;
        tensor.sequence_parallel = rows;
        ExpertParallelOptions expert;
        expert.dispatch = dispatch;
        expect_whole(whole, "deepseek_v3", axes, tensor, {}, expert, 0);
      }
}

TEST_CASE("whole against parts: Llama") { expect_whole_over_tp_and_cp(testing::whole_of(kMakeLlama), "llama3", 4); }
TEST_CASE("whole against parts: Qwen3") { expect_whole_over_tp_and_cp(testing::whole_of(kMakeQwen), "llama3", 4); }
TEST_CASE("whole against parts: GPT") { expect_whole_over_tp_and_cp(testing::whole_of(kMakeGpt), "gpt", 0); }

// Calls see() with the step without each of the ops with such an opcode, and an operand as large as its result, in turn.
//   returns: how often
template <class See>
size_t without_each(const testing::PlacedStep& parts, const std::set<std::string>& opcodes, See see) {
  size_t count = 0;
  for (size_t i = 0; i < parts.graph.ops().size(); ++i) {
    const ir::Op& op = *parts.graph.ops()[i];
    if (!opcodes.contains(op.opcode) || op.operands[0]->type().shape() != op.result()->type().shape()) continue;
    testing::PlacedStep broken = {parts.graph.clone(), parts.constants, parts.boxes};
    ir::Op* left_out = broken.graph.ops()[i].get();
    CAPTURE(ir::name_of(*left_out));
    broken.graph.replace_uses(left_out->result(), left_out->operands[0]);
    broken.graph.erase(left_out);
    see(broken);
    ++count;
  }
  return count;
}

// Beside data axes: two samples a rank and micro-batch, of a batch that is as many times larger.
struct Beside {
  std::vector<MeshAxis> axes;
  const char* plan = "";
  int64_t micro_batches = 1;
  passes::RematMode remat = passes::RematMode::None;
  int64_t zero_stage = 3;
  bool rows = true;
  ContextParallelOptions context = {};
};

testing::PlacedStep placed_beside(const testing::WholeStep& part, const Strategy& strategy, const Beside& beside) {
  testing::PlacedStep parts = placed(part, strategy);
  parts.graph.micro_batches = beside.micro_batches;
  parallel::apply_data_parallel(parts.graph, strategy);
  const size_t ops = parts.graph.ops().size();
  passes::PassContext context;
  if (beside.remat != passes::RematMode::None) {
    passes::remat(parts.graph, {.mode = beside.remat}, context);
    CHECK(parts.graph.ops().size() > ops + 15);
  }
  return parts;
}

Strategy strategy_of(const Beside& beside) {
  const DeviceMesh mesh = init_device_mesh(beside.axes);
  const TensorParallel tensor =
      mesh.has("tp") ? tensor_parallel(rules_of(beside.plan), {.sequence_parallel = beside.rows}) : TensorParallel{};
  return data_parallel(mesh, {.zero_stage = beside.zero_stage}, tensor, beside.context);
}

//   turns: of all layers, in a ring
//   copies: of a token, for its experts
template <class Make>
void expect_whole_beside(Make make, const std::vector<Beside>& all, size_t turns, int64_t copies = 0) {
  const testing::WholeStep part = testing::whole_of(make);
  std::map<int64_t, testing::WholeStep> wholes;  // by the number of parts
  for (const Beside& beside : all) {
    const Strategy strategy = strategy_of(beside);
    const testing::StepLayout layout = {strategy.mesh, strategy.context.load_balance, strategy.data_axes(),
                                        beside.micro_batches, copies * testing::kBorderRows * testing::kBorderSequence};
    CAPTURE(to_string(strategy.mesh));
    CAPTURE(beside.micro_batches);
    CAPTURE(to_string(beside.remat));
    CAPTURE(beside.zero_stage);
    CAPTURE(beside.rows);
    if (!wholes.contains(layout.parts()))
      wholes.emplace(layout.parts(), testing::whole_of(make, testing::kBorderRows * layout.parts()));
    const testing::Compared compared =
        testing::compare_borders(wholes.at(layout.parts()), placed_beside(part, strategy, beside), layout);
    CAPTURE(compared.worst);
    CHECK(compared.most <= 1e-11);
    CHECK(compared.gone == (beside.context.rotate_method == RotateMethod::Ring ? turns : 0));
    CHECK(compared.sorted == (copies > 0 ? 4 : 0));
    CHECK((compared.summands > 0) == (beside.micro_batches > 1));
    CHECK(compared.values + compared.gone + compared.sorted + compared.summands ==
          wholes.at(layout.parts()).borders.size());
    CHECK(compared.values >= 55);
  }
}

std::vector<Beside> beside(const char* plan) {
  using enum passes::RematMode;
  return {{{{"dp_shard", 2}, {"tp", 2}}, plan},
          {{{"dp_shard", 2}, {"tp", 2}}, plan, 3, Op, 2, false},
          {{{"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 2}}, plan, 1, Full, 3, false},
          {{{"dp_shard", 2}, {"cp", 2}}, plan, 2, Full},
          {{{"dp_shard", 2}, {"cp", 2}, {"tp", 2}}, plan, 2, None, 1},
          {{{"dp_shard", 2}, {"cp", 2}, {"tp", 2}}, plan, 1, Op, 3, true, {.rotate_method = RotateMethod::Ring}},
          {{{"dp_shard", 3}}, plan, 2, Full}};
}

TEST_CASE("whole against parts, beside data axes: Llama") { expect_whole_beside(kMakeLlama, beside("llama3"), 4); }
TEST_CASE("whole against parts, beside data axes: Qwen3") { expect_whole_beside(kMakeQwen, beside("llama3"), 4); }
TEST_CASE("whole against parts, beside data axes: DeepSeek-V3") {
  auto all = beside("deepseek_v3");
  all.push_back({{{"dp_shard", 2}, {"ep", 2}}, "deepseek_v3", 2, passes::RematMode::Full});
  expect_whole_beside(kMakeMixture, all, 2, mixture_args().top_k);
}
TEST_CASE("whole against parts, beside data axes: GPT") { expect_whole_beside(kMakeGpt, beside("gpt"), 0); }

// What is compared sees each sum that is left out, also one whose result is no border itself.
TEST_CASE("whole against parts: a sum that is left out, and rows that lie in another order, are seen") {
  const testing::WholeStep whole = testing::whole_of(kMakeLlama);
  const Strategy tp = data_parallel(init_device_mesh({{"tp", 2}}), {}, tensor_parallel(rules_of("llama3")));
  const testing::PlacedStep parts = placed(whole, tp);
  CHECK(without_each(parts, {"all_reduce"}, [&](const testing::PlacedStep& broken) {
          CHECK(testing::compare_borders(whole, broken, {.mesh = tp.mesh, .balanced = true}).most > 1e-6);
        }) >= 8);  // 2 a block each way
  const Beside data = {{{"dp_replicate", 2}, {"tp", 2}}, "llama3", 2};
  const testing::WholeStep batch = testing::whole_of(kMakeLlama, 4 * testing::kBorderRows);
  const Strategy strategy = strategy_of(data);
  CHECK(without_each(placed_beside(whole, strategy, data), {"accumulate", "all_reduce"}, [&](const auto& broken) {
          CHECK(testing::compare_borders(batch, broken, {strategy.mesh, true, strategy.data_axes(), 2}).most > 1e-6);
        }) >= 40);  // 19 gradients
  const Strategy cp = data_parallel(init_device_mesh({{"cp", 2}}));
  CHECK(testing::compare_borders(whole, placed(whole, cp), {.mesh = cp.mesh}).most > 1e-6);
}

}  // namespace whole_against_parts_test
}  // namespace sfsdp

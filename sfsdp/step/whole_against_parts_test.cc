// SPDX-License-Identifier: BSD-3-Clause
// Captured models, 2 layers, forward, loss and backward: cut over tp, cp, ep and several they mean on their ranks what the whole one does, at
// every value that one module hands to another, not in what a step returns alone. In the interpreter, in float64.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/capture_step.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/models/deepseek_v3/deepseek_v3.h"
#include "sfsdp/models/tensor_parallel_plans.h"
#include "sfsdp/parallel/model_parallel.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/interp/interpreter.h"
#include "sfsdp/testing/libtorch_kernels_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace whole_against_parts_test {

using ir::interp::Array;

constexpr int64_t kKeys = 4;                  // heads of keys and values
constexpr int64_t kRows = 2, kSequence = 16;  // no other dimension of these models has 16, nor 32, elements

const ir::interp::RunOptions kExact = {.rounding = ir::interp::Rounding::None, .other = testing::run_in_libtorch};

// How a mesh lays out a sequence, beside what types say.
struct Layout {
  DeviceMesh mesh;
  bool balanced = false;  // chunks from head and tail over cp
};

// Where a rank's row `at` of a dimension stands in the whole one of `size` elements. Axes are undone from the inner one on; in dimensions
// that are the sequence, or samples joined with it, cp takes two chunks of each block.
int64_t place_in_whole(const Layout& layout, const ir::Dim& dim, int64_t size, int64_t rank, int64_t at) {
  int64_t held = dim.size;  // of what the axis being undone leaves to a rank
  for (size_t k = dim.split.size(); k-- > 0;) {
    const std::string& axis = dim.split[k];
    const int64_t ranks = layout.mesh.size(axis), r = layout.mesh.axis_rank(rank, axis);
    const int64_t part = held / dim.blocks_of(k), block = at / part, in_part = at % part;
    const bool two_chunks = axis == "cp" && layout.balanced && size % kSequence == 0 && part * ranks == kSequence;
    int64_t place = r * part + in_part;
    if (two_chunks && in_part < part / 2)
      place = r * part / 2 + in_part;
    else if (two_chunks)
      place = (2 * ranks - 1 - r) * part / 2 + in_part - part / 2;
    at = block * part * ranks + place;
    held *= ranks;
  }
  return at;
}

// The element of the whole array at which a rank's element `i` stands.
int64_t element_of_whole(const Layout& layout, const ir::Type& type, const std::vector<int64_t>& whole, int64_t rank,
                         int64_t i) {
  int64_t element = 0, stride = 1;
  for (size_t d = type.dims.size(); d-- > 0;) {
    element += stride * place_in_whole(layout, type.dims[d], whole[d], rank, i % type.dims[d].size);
    i /= type.dims[d].size;
    stride *= whole[d];
  }
  return element;
}

// The whole's sizes as the type has dimensions: a weight with blocks has one for them.
std::vector<int64_t> whole_shape(const DeviceMesh& mesh, const ir::Type& type) {
  std::vector<int64_t> shape;
  for (const ir::Dim& dim : type.dims) {
    int64_t size = dim.size;
    for (const std::string& axis : dim.split) size *= mesh.size(axis);
    shape.push_back(size);
  }
  return shape;
}

Array part_of(const Array& whole, const ir::Type& type, const Layout& layout, int64_t rank) {
  Array part = {whole.dtype, type.shape(), {}};
  const auto shape = whole_shape(layout.mesh, type);
  REQUIRE(ir::interp::numel(shape) == whole.numel());
  for (int64_t i = 0; i < type.numel(); ++i)
    part.data.push_back(whole.data[static_cast<size_t>(element_of_whole(layout, type, shape, rank, i))]);
  return part;
}

AxisList axes_of(const ir::Type& type, ir::Placement::Kind kind) {
  AxisList axes;
  for (const ir::AxisPlacement& p : type.placements)
    if (p.placement.kind == kind) axes.insert(axes.end(), p.axes.begin(), p.axes.end());
  return axes;
}

// Where the rows of a rank's experts begin among all of them, which it has at its front, and how many they are.
struct OwnRows {
  int64_t begin = 0, count = 0;
};
OwnRows own_rows_of(const Layout& layout, const Array& ends, int64_t rank) {
  const int64_t groups = ends.numel() / layout.mesh.size("ep"), first = groups * layout.mesh.axis_rank(rank, "ep");
  const auto end_of = [&](int64_t group) { return group < 0 ? 0 : static_cast<int64_t>(ends.data.at(group)); };
  return {end_of(first - 1), end_of(first + groups - 1) - end_of(first - 1)};
}

// The largest difference between the whole and what ranks hold of it: each rank's summands are added to those of the ranks along the
// axes of its sum, then each element is compared where it stands.
//   ends: of experts' rows, where there are experts
double difference(const Array& whole, const std::vector<const Array*>& held, const ir::Type& type, const Layout& layout,
                  const Array* ends) {
  const AxisList sum = axes_of(type, ir::Placement::Kind::Partial);
  const bool is_rows = !axes_of(type, ir::Placement::Kind::Rows).empty();
  const auto shape = whole_shape(layout.mesh, type);
  if (ir::interp::numel(shape) != whole.numel()) return INFINITY;
  double most = 0, largest = 0;
  for (const double x : whole.data) largest = std::max(largest, std::abs(x));
  const int64_t row = is_rows ? type.numel() / type.dims[0].size : 0;  // elements of one
  for (int64_t rank = 0; rank < std::ssize(held); ++rank) {
    const OwnRows own = is_rows ? own_rows_of(layout, *ends, rank) : OwnRows();
    for (int64_t i = 0; i < (is_rows ? own.count * row : type.numel()); ++i) {
      double got = held[rank]->data[i];
      for (const int64_t other : layout.mesh.ranks_of_group(rank, sum))
        if (!sum.empty() && other != rank) got += held[other]->data[i];
      const double error = std::abs(got - whole.data[element_of_whole(layout, type, shape, rank, i + own.begin * row)]);
      most = std::isnan(error) ? INFINITY : std::max(most, error);
    }
  }
  return most == 0 ? 0 : most / largest;
}

// Float32 becomes float64, so that the kernels of LibTorch, which make the tables of angles, compute in it too.
void widen(ir::Graph& graph) {
  for (const auto& op : graph.ops()) {
    for (const auto& result : op->results()) {
      ir::Type type = result->type();
      if (type.dtype == ir::DType::f32) type.dtype = ir::DType::f64;
      result->set_type(std::move(type));
    }
    for (const char* key : {"dtype", "out_dtype"})
      if (const auto* dtype = op->find_attr<ir::DType>(key); dtype && *dtype == ir::DType::f32)
        op->attrs[key] = ir::DType::f64;
  }
}

// What ops of another module path read, what is returned, and parameters' gradients. Not what is given, nor what is a view of it.
std::vector<ir::Value*> at_borders(const ir::Graph& graph) {
  std::set<const ir::Value*> crossing(graph.outputs.begin(), graph.outputs.end());
  for (const auto& op : graph.ops())
    for (const ir::Value* operand : op->operands)
      if (operand && (op->is("gradient") || operand->producer()->module_path != op->module_path))
        crossing.insert(operand);
  std::vector<ir::Value*> borders;
  for (const auto& op : graph.ops()) {
    if (ir::is_root(*op) || op->is("constant")) continue;
    for (const auto& result : op->results())
      if (crossing.contains(result.get()) || op->is("gradient")) borders.push_back(result.get());
  }
  return borders;
}

struct Whole {
  ir::Graph graph;
  std::vector<at::Tensor> constants;
  ir::interp::Inputs given;
  std::map<std::string, Array> borders;  // by the value's name
  std::vector<std::string> outputs;      // of these
};

template <class Make>
Whole whole_of(Make make) {
  auto model = meta_init(make);
  const auto state = capture::take_state(*model);
  const Batch example = testing::tokens(0, 0, kRows, kSequence);
  auto captured = capture::capture_step(*model, state,
                                        [&](const Batch& b) {
                                          return capture::LossValue{testing::loss_of(model, b), {}};
                                        },
                                        example, {});
  Whole whole{std::move(captured.graph), std::move(captured.constants), {}, {}, {}};
  ir::Graph named = whole.graph.clone();
  parallel::name_ops(named);
  widen(named);
  whole.given = ir::interp::seeded_inputs(named, 7)[0];
  for (const auto& op : named.ops()) {
    if (op->is("constant")) {
      const auto index = op->attr<int64_t>("index");
      whole.given[concat("constant.", index)] =
          testing::to_array(whole.constants[static_cast<size_t>(index)], op->result()->type().dtype);
    } else if (op->is("param")) {  // near what is drawn for a weight, so that no softmax is 0 and 1 alone
      for (double& x : whole.given.at(op->attr<std::string>("name")).data) x = x / 8 + 1.0 / 32;
    } else if (op->is("input")) {
      Array& ids = whole.given.at(op->attr<std::string>("name"));
      for (size_t i = 0; i < ids.data.size(); ++i)
        ids.data[i] = static_cast<double>((7 * i * i + 3 * i + (op->attr<std::string>("name").back() - '0')) % 28);
    }
  }
  for (const ir::Value* output : named.outputs) whole.outputs.push_back(output->name());
  named.outputs = at_borders(named);
  const auto run = ir::interp::run(named, {whole.given}, kExact);
  for (size_t i = 0; i < named.outputs.size(); ++i) whole.borders[named.outputs[i]->name()] = run.ranks[0].outputs[i];
  return whole;
}

// A name of the parts under which something else stands: the gradient that one rank's keys make, in a ring.
bool is_one_turn(const ir::Value& value) { return value.producer()->has_attr("shift"); }

struct Compared {
  size_t values = 0, cut = 0, gone = 0;  // gone: values of the whole that the parts have under no name
  double most = 0;                       // difference of a value, beside its largest number
  std::string worst;                     // the value that has it
};

// Names and values of the parts that stand for the whole's: what is returned by its place, all else by name.
std::vector<std::pair<std::string, ir::Value*>> pairs_of(const Whole& whole, const ir::Graph& parts, size_t& gone) {
  std::vector<std::pair<std::string, ir::Value*>> pairs;
  for (const auto& [name, array] : whole.borders) {
    const auto output = std::ranges::find(whole.outputs, name);
    ir::Value* value = output == whole.outputs.end()
                           ? parts.find_value(name)
                           : parts.outputs.at(static_cast<size_t>(output - whole.outputs.begin()));
    if (value && !is_one_turn(*value))
      pairs.emplace_back(name, value);
    else
      ++gone;
  }
  return pairs;
}

// Runs the parts and compares each value that the whole hands from module to module.
Compared compare(const Whole& whole, const ir::Graph& placed, const Layout& layout) {
  ir::Graph parts = placed.clone();
  widen(parts);
  Compared compared;
  const auto pairs = pairs_of(whole, parts, compared.gone);
  parts.outputs.clear();
  for (const auto& [name, value] : pairs) parts.outputs.push_back(value);
  for (const auto& op : parts.ops())  // one mixture, so one of these
    if (op->is("own_rows", "own_ends") && parts.outputs.size() == pairs.size())
      parts.outputs.push_back(op->operands[op->is("own_rows") ? 1 : 0]);
  std::vector<ir::interp::Inputs> given(static_cast<size_t>(layout.mesh.world_size()), whole.given);
  for (const auto& op : parts.ops())
    if (op->is("param"))
      for (size_t rank = 0; rank < given.size(); ++rank) {
        const auto name = op->attr<std::string>("name");
        given[rank][name] = part_of(whole.given.at(name), op->result()->type(), layout, static_cast<int64_t>(rank));
      }
  const auto run = ir::interp::run(parts, given, kExact);
  const Array* ends = parts.outputs.size() > pairs.size() ? &run.ranks[0].outputs.back() : nullptr;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const ir::Value& value = *pairs[i].second;
    std::vector<const Array*> held;
    for (const auto& rank : run.ranks) held.push_back(&rank.outputs[i]);
    const double most = difference(whole.borders.at(pairs[i].first), held, value.type(), layout, ends);
    if (most > compared.most) {
      compared.most = most;
      compared.worst = concat('%', value.name(), " : ", value.type(), " at ", value.producer()->module_path);
    }
    ++compared.values;
    compared.cut += std::ranges::any_of(value.type().dims, [](const ir::Dim& d) { return !d.split.empty(); }) ? 1 : 0;
  }
  return compared;
}

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

ir::Graph placed(const Whole& whole, const Strategy& strategy) {
  ir::Graph parts = whole.graph.clone();
  parts.view = ir::Graph::View::Local;
  parallel::apply_model_parallel(parts, strategy);
  CHECK(plan::verify_layouts(parts) == "");
  return parts;
}

//   turns: values of the whole that in a ring are one rank's part of a gradient, and stand under no name
void expect_whole(const Whole& whole, const char* plan, const std::vector<MeshAxis>& axes,
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
  const Compared compared = compare(whole, placed(whole, strategy), {mesh, context.load_balance});
  CAPTURE(compared.worst);
  CHECK(compared.most <= 1e-11);
  CHECK(compared.gone == (context.rotate_method == RotateMethod::Ring ? turns : 0));
  CHECK(compared.cut >= 20);
}

//   turns: of all layers, in a ring
void expect_whole_over_tp_and_cp(const Whole& whole, const char* plan, size_t turns) {
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

TEST_CASE("whole against parts: DeepSeek-V3") { expect_whole_over_tp_and_cp(whole_of(kMakeMixture), "deepseek_v3", 2); }
// Rooms and further rounds, which are made after the cut, stand in passes/memory/further_rounds_test.cc.
TEST_CASE("whole against parts: DeepSeek-V3, experts on ranks of their own") {
  const Whole whole = whole_of(kMakeMixture);
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

TEST_CASE("whole against parts: Llama") { expect_whole_over_tp_and_cp(whole_of(kMakeLlama), "llama3", 4); }
TEST_CASE("whole against parts: Qwen3") { expect_whole_over_tp_and_cp(whole_of(kMakeQwen), "llama3", 4); }
TEST_CASE("whole against parts: GPT") { expect_whole_over_tp_and_cp(whole_of(kMakeGpt), "gpt", 0); }

// What is compared sees each sum that is left out, also one whose result is no border itself.
TEST_CASE("whole against parts: a sum that is left out, and rows that lie in another order, are seen") {
  const Whole whole = whole_of(kMakeLlama);
  const Strategy tp = data_parallel(init_device_mesh({{"tp", 2}}), {}, tensor_parallel(rules_of("llama3")));
  const ir::Graph parts = placed(whole, tp);
  size_t sums = 0;
  for (size_t i = 0; i < parts.ops().size(); ++i) {
    if (!parts.ops()[i]->is("all_reduce")) continue;
    ir::Graph broken = parts.clone();
    ir::Op* sum = broken.ops()[i].get();
    CAPTURE(ir::name_of(*sum));
    broken.replace_uses(sum->result(), sum->operands[0]);
    broken.erase(sum);
    CHECK(compare(whole, broken, {tp.mesh, true}).most > 1e-6);
    ++sums;
  }
  CHECK(sums >= 8);  // 2 a block each way
  const Strategy cp = data_parallel(init_device_mesh({{"cp", 2}}));
  CHECK(compare(whole, placed(whole, cp), {cp.mesh, false}).most > 1e-6);
}

}  // namespace whole_against_parts_test
}  // namespace sfsdp

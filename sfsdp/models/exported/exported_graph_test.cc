// SPDX-License-Identifier: BSD-3-Clause
// Graphs written down here, run node by node: parts of their own, ops of other libraries, evaluation.
#include "sfsdp/models/exported/exported_graph.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/models/exported/exported_op.h"

namespace sfsdp::models {
namespace exported_graph_test {

using exported::Argument;
using exported::Graph;
using exported::NamedArgument;
using exported::Slot;
using exported::ValueArgument;

// One node, whose first arguments are the graph's inputs: op(input 0, input 1, …, more) -> one result.
Graph graph_of(const std::string& target, const std::vector<std::string>& inputs, std::vector<NamedArgument> more) {
  Graph graph;
  exported::Node node;
  node.target = target;
  for (const std::string& name : inputs) {
    const auto slot = static_cast<Slot>(graph.values.size());
    graph.values.push_back({concat("in", slot), exported::TensorMeta{}});
    graph.inputs.push_back(slot);
    node.inputs.push_back({name, ValueArgument{slot}});
  }
  for (NamedArgument& argument : more) node.inputs.push_back(std::move(argument));
  const auto result = static_cast<Slot>(graph.values.size());
  graph.values.push_back({"out", exported::TensorMeta{}});
  node.outputs.push_back(ValueArgument{result});
  graph.outputs.push_back(ValueArgument{result});
  graph.nodes.push_back(std::move(node));
  return graph;
}

at::Tensor run(const Graph& graph, const std::vector<at::Tensor>& inputs, bool training = true) {
  const std::vector<c10::IValue> values(inputs.begin(), inputs.end());
  return ExportedGraph(graph).run(values, training).at(0).toTensor();
}

std::string refusal(const Graph& graph) {
  try {
    const ExportedGraph made(graph);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// A node of a higher-order op that runs x * x: arguments before its graph, the graph, x, and arguments by name.
Graph region_of(const std::string& name, const std::vector<Argument>& before, const std::vector<NamedArgument>& after) {
  const auto body = std::make_shared<const Graph>(graph_of("torch.ops.aten.square.default", {"self"}, {}));
  Graph graph = graph_of("torch.ops.higher_order." + name, {""}, {});
  auto& inputs = graph.nodes[0].inputs;
  inputs.insert(inputs.begin(), {"", body});
  for (size_t i = before.size(); i-- > 0;) inputs.insert(inputs.begin(), {"", before[i]});
  inputs.insert(inputs.end(), after.begin(), after.end());
  return graph;
}

Graph autocast(bool enabled, const std::string& device = "cpu", ir::DType dtype = ir::DType::bf16) {
  return region_of("wrap_with_autocast", {device, exported::DTypeArgument{dtype}, enabled, false}, {});
}

TEST_CASE("what ran under no_grad, checkpoint or an autocast that is off is a part of the graph") {
  const at::Tensor x = at::arange(6).to(at::kFloat).set_requires_grad(true);
  for (const Graph& graph :
       {region_of("wrap_with_set_grad_enabled", {true}, {}), autocast(false), autocast(false, "cuda"),
        region_of("tag_activation_checkpoint", {}, {{"use_reentrant", false}})}) {
    const at::Tensor y = run(graph, {x});
    CHECK(at::equal(y, x * x));
    CHECK(y.requires_grad());
  }
  const at::Tensor still = run(region_of("wrap_with_set_grad_enabled", {false}, {}), {x});
  CHECK(at::equal(still, x * x));
  CHECK(!still.requires_grad());
}

TEST_CASE("autocast of another device or dtype, and control flow, are refused by name") {
  CHECK(refusal(autocast(true)) == "");
  CHECK(refusal(autocast(true, "cuda")).find("is torch.autocast of device \"cuda\"") != std::string::npos);
  CHECK(refusal(autocast(true, "cpu", ir::DType::f32)).find("is torch.autocast to f32") != std::string::npos);
  CHECK(refusal(region_of("cond", {true}, {})).find("higher_order.cond is control flow") != std::string::npos);
  CHECK(refusal(region_of("wrap_with_set_grad_enabled", {}, {})).find("has no flag at place 0") != std::string::npos);
  Graph two = region_of("tag_activation_checkpoint", {}, {});
  two.nodes[0].inputs.push_back({"", int64_t{1}});
  CHECK(refusal(two).find("has 2 inputs\n  expected 1") != std::string::npos);
}

TEST_CASE("an op of another library runs as the function that is registered for it") {
  const Graph graph = graph_of("torch.ops.my_library.scale.default", {"x"}, {{"factor", 3.0}});
  CHECK(refusal(graph).find("register_exported_op") != std::string::npos);
  // docs/exported_models.md has these lines
  register_exported_op("my_library::scale", [](const OpArguments& arguments) -> std::vector<c10::IValue> {
    const at::Tensor x = arguments.at("x").toTensor();
    return {x * arguments.at("factor").toDouble()};
  });
  const at::Tensor x = at::arange(6).to(at::kFloat);
  CHECK(at::equal(run(graph, {x}), x * 3));
  CHECK_THROWS_AS(register_exported_op("aten::add", nullptr), UserError);
  CHECK_THROWS_AS(register_exported_op("scale", nullptr), UserError);
}

TEST_CASE("experts of transformers: each group of rows times the weight of its expert") {
  const at::Tensor x = at::arange(10 * 4).view({10, 4}).to(at::kFloat) / 8;
  const at::Tensor weight = at::arange(3 * 4 * 8).view({3, 4, 8}).to(at::kFloat) / 16;
  const std::vector<int64_t> ends = {4, 4, 10};  // the second has no rows
  const Graph graph = graph_of("torch.ops.transformers.grouped_mm_fallback.default", {"input", "weight", "offs"}, {});
  const at::Tensor y = run(graph, {x, weight, at::tensor(ends, at::kLong)});
  CHECK(at::allclose(y.slice(0, 0, 4), x.slice(0, 0, 4).matmul(weight[0])));
  CHECK(at::allclose(y.slice(0, 4, 10), x.slice(0, 4, 10).matmul(weight[2])));
}

TEST_CASE("an op whose replacement lacks an argument says which node it was") {
  const Graph graph = graph_of("torch.ops.transformers.grouped_mm_fallback.default", {"input", "weight"}, {});
  CHECK_THROWS_WITH_AS(run(graph, {at::ones({2, 4}), at::ones({1, 4, 4})}),
                       doctest::Contains("transformers.grouped_mm_fallback.default lacks an argument"), UserError);
}

// Norms over channels of [N, C, L], trained with the statistics of the batch.
Graph norm_of(const std::string& target, const char* flag, bool running) {
  std::vector<std::string> inputs = {"input"};
  if (running) inputs.insert(inputs.end(), {"running_mean", "running_var"});
  std::vector<NamedArgument> more = {{"weight", exported::NoneArgument{}}, {"bias", exported::NoneArgument{}}};
  if (!running)
    for (const char* name : {"running_mean", "running_var"}) more.push_back({name, exported::NoneArgument{}});
  more.insert(more.end(), {{flag, true}, {"momentum", 0.1}, {"eps", 1e-5}, {"cudnn_enabled", true}});
  return graph_of(target, inputs, more);
}

TEST_CASE("in evaluation a norm takes its running statistics, and those of the batch where it keeps none") {
  const at::Tensor x = at::arange(24).view({2, 3, 4}).to(at::kFloat);
  const at::Tensor mean = at::tensor({1.0f, 2.0f, 3.0f}), var = at::tensor({4.0f, 9.0f, 16.0f});
  const at::Tensor expected = (x - mean.view({3, 1})) / (var.view({3, 1}) + 1e-5).sqrt();
  for (const auto& [target, flag] : {std::pair{"torch.ops.aten.batch_norm.default", "training"},
                                     std::pair{"torch.ops.aten.instance_norm.default", "use_input_stats"}}) {
    CAPTURE(target);
    const at::Tensor kept = mean.clone();
    CHECK(at::allclose(run(norm_of(target, flag, true), {x, kept, var.clone()}, false), expected));
    CHECK(at::equal(kept, mean));
    const Graph bare = norm_of(target, flag, false);
    CHECK(at::equal(run(bare, {x}, false), run(bare, {x}, true)));
  }
}

TEST_CASE("in evaluation nothing drops out") {
  const at::Tensor x = at::ones({64});
  const Graph graph = graph_of("torch.ops.aten.dropout.default", {"input"}, {{"p", 0.5}, {"train", true}});
  CHECK(!at::equal(run(graph, {x}), x));
  CHECK(at::equal(run(graph, {x}, false), x));
}

}  // namespace exported_graph_test
}  // namespace sfsdp::models

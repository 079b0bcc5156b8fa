// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/grad_marks.h"

#include <doctest/doctest.h>

#include <memory>

#include "sfsdp/base/check.h"

namespace sfsdp::exported::grad_marks_test {
namespace {

NamedArgument value(Slot slot) { return {"", ValueArgument{slot}}; }

Node op(const std::string& module_path, std::vector<NamedArgument> inputs, Slot result) {
  Node node;
  node.target = "torch.ops.aten.mm.default";
  node.inputs = std::move(inputs);
  node.outputs = {ValueArgument{result}};
  node.module_path = module_path;
  return node;
}

// A node that runs `body`, whose inputs are slots 0, 1, …, on the values of `slots`.
Node region(const std::string& name, std::vector<NamedArgument> flags, Graph body, const std::vector<Slot>& slots,
            Slot result) {
  Node node = op("", std::move(flags), result);
  node.target = "torch.ops.higher_order." + name;
  for (Slot slot = 0; slot < static_cast<Slot>(slots.size()); ++slot) body.inputs.push_back(slot);
  node.inputs.push_back({"", std::make_shared<const Graph>(std::move(body))});
  for (const Slot slot : slots) node.inputs.push_back(value(slot));
  return node;
}

Graph body_of(std::vector<Node> nodes) {
  Graph graph;
  graph.nodes = std::move(nodes);
  return graph;
}

// Parameters layers.N.w in slots 0 to 3, the batch in slot 4.
Contents program_of(std::vector<Node> nodes) {
  Contents program;
  for (int i = 0; i < 4; ++i) {
    StateTensor tensor;
    tensor.name = concat("layers.", i, ".w");
    tensor.sizes = {2, 2};
    tensor.strides = {2, 1};
    tensor.entry = static_cast<size_t>(i);
    program.state.push_back(tensor);
    program.state_inputs.emplace_back(i, static_cast<size_t>(i));
  }
  program.graph.nodes = std::move(nodes);
  return program;
}

TEST_CASE("marks of gradients: blocks with a marked node, or inside of torch's own mark, in the order of the graph") {
  Node marked = op("layers.2.mlp", {value(4), value(2)}, 5);
  marked.checkpointed = true;
  Node twice = op("layers.2", {value(5), value(2)}, 6);
  twice.checkpointed = true;
  Node outside = op("norm", {value(6)}, 7);  // is in no block
  outside.checkpointed = true;
  Node bare = op("layers.9", {value(7)}, 8);  // a block without parameters
  bare.checkpointed = true;
  const Graph body = body_of({op("layers.0.attention", {value(0), value(1)}, 2)});
  const Contents program = program_of({marked, twice, outside, bare, op("layers.1", {value(8), value(1)}, 9),
                                       region("tag_activation_checkpoint", {}, body, {9, 0}, 10)});
  CHECK((checkpointed_blocks(program) == std::vector<std::string>{"layers.2", "layers.0"}));
  CHECK(checkpointed_blocks(program_of({op("layers.1", {value(4), value(1)}, 5)})).empty());
}

TEST_CASE("marks of gradients: parameters that are read under no_grad alone, through graphs in graphs") {
  const auto off = [](Graph body, const std::vector<Slot>& slots, Slot result) {
    return region("wrap_with_set_grad_enabled", {{"", false}}, std::move(body), slots, result);
  };
  const auto on = [](Graph body, const std::vector<Slot>& slots, Slot result) {
    return region("wrap_with_set_grad_enabled", {{"", true}}, std::move(body), slots, result);
  };
  const Graph product = body_of({op("", {value(0), value(1)}, 2)});
  // 0 with gradients, 1 without, 2 both, 3 by nobody
  Contents program = program_of({op("", {value(4), value(0)}, 5), off(product, {5, 1}, 6), off(product, {6, 2}, 7),
                                 op("", {value(7), value(2)}, 8)});
  CHECK((parameters_without_grad(program) == std::vector<size_t>{1}));
  program.state[1].kind = StateTensor::Kind::Buffer;
  CHECK(parameters_without_grad(program).empty());
  program.state[1].kind = StateTensor::Kind::Parameter;
  program.state[1].entry = 0;  // tied to a parameter that is reached
  CHECK(parameters_without_grad(program).empty());

  // Off stays off for a part of the part that turns it on, as it does when the graph runs.
  const Graph nested = body_of({on(product, {0, 1}, 2)});
  CHECK((parameters_without_grad(program_of({off(nested, {4, 3}, 5)})) == std::vector<size_t>{3}));
  CHECK(parameters_without_grad(program_of({on(product, {4, 3}, 5)})).empty());
}

}  // namespace
}  // namespace sfsdp::exported::grad_marks_test

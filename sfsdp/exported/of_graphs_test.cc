// SPDX-License-Identifier: BSD-3-Clause
// Captures written down here become an archive, which is read back.
#include "sfsdp/exported/of_graphs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/write_program.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::exported::of_graphs_test {
namespace {

using Kind = OpSignature::Kind;

OpSignature signature_of(const std::string& opcode) {
  const OpSignature::Parameter self = {"self", Kind::Tensor}, dtype = {"dtype", Kind::DType, true};
  if (opcode == "aten.arange")
    return {{{"end"}, dtype, {"layout", Kind::Layout, true}, {"device", Kind::Device, true}}};
  if (opcode == "aten.clone") return {{self, {"memory_format", Kind::MemoryFormat, true}}};
  if (opcode == "aten.cat") return {{{"tensors", Kind::TensorList}, {"dim"}}};
  if (opcode == "aten.split.Tensor") return {{self, {"split_size"}, {"dim"}}, true};
  if (opcode == "aten.slice.Tensor") return {{self, {"dim"}, {"start"}, {"end"}, {"step"}}};
  if (opcode == "aten.transpose.int") return {{self, {"dim0"}, {"dim1"}}};
  if (opcode == "aten.add.Tensor") return {{self, {"other", Kind::Tensor}, {"alpha", Kind::Other, true}}};
  return {{self}};
}

// The text at each point: <B> and <S> stand for the sizes, <B*S> for their product, and so on.
std::vector<ir::Graph> at_points(const std::string& text, const Sizes& sizes) {
  std::vector<ir::Graph> graphs;
  for (const auto& point : sizes.points()) {
    std::string there = text;
    const auto replace = [&](const std::string& word, int64_t number) {
      for (size_t at = there.find(word); at != std::string::npos; at = there.find(word))
        there.replace(at, word.size(), std::to_string(number));
    };
    replace("<B>", point[0]);
    replace("<S>", point[1]);
    replace("<B*S>", point[0] * point[1]);
    replace("<4*S>", 4 * point[1]);
    replace("<S/2>", point[1] / 2);
    graphs.push_back(ir::parse_or_throw(there));
  }
  return graphs;
}

Contents contents_of_text(const std::string& text, std::map<std::string, std::vector<std::string>> tied = {}) {
  const Sizes sizes({{"batch", 1, std::nullopt}, {"length", 1, 64}});
  const auto graphs = at_points(text, sizes);
  return contents_of({graphs, {"tokens"}, std::move(tied)}, sizes, signature_of);
}

const std::string kText = R"(
  graph mesh [] view global
    %w = param name=w : f32[3, 4]
    %m = state name=norm.mean : f32[4]
    %x = input name=batch.0 : i64[<B>, <S>]
  fwd:
    %c = constant index=0 : f32[4]
    %a = aten.arange end=<S> dtype=f32 : f32[<S>]
    %unread = aten.relu %a : f32[<S>]
    %p = aten.slice.Tensor %a end=1 : f32[1] at layers.0
    %one = scalar value=1 : f32[]
    %v = aten.view %x size=[<B*S>] : i64[<B*S>] at layers.0
    %n = aten.add.Tensor %v, %one alpha=2 : i64[<B*S>]
    %s0, %s1 = aten.split.Tensor %w split_size=2 : f32[2, 4], f32[1, 4]
    %j = aten.cat [%s1, %s0] : f32[3, 4]
    %t = aten.transpose.int %j dim0=0 dim1=1 : f32[4, 3]{1, 4}
    %k = aten.clone %t memory_format=0 : f32[4, 3]
    %u = aten._unsafe_view %k size=[12] : f32[12]
    %q = aten.add.Tensor %m, %c : f32[4]
    return %n, %u, %p
    carry %m = %q
)";

std::vector<std::string> targets_of(const Graph& graph) {
  std::vector<std::string> targets;
  for (const Node& node : graph.nodes)
    targets.push_back(node.target.substr(
        node.target.find("aten") == std::string::npos ? 0 : std::string_view("torch.ops.aten.").size()));
  return targets;
}

TEST_CASE("an archive of captures: sizes become nodes, views reshapes, and what is not read is left out") {
  const Contents contents = contents_of_text(kText, {{"w", {"tied.w"}}});
  CHECK(targets_of(contents.graph) == std::vector<std::string>{"sym_size.int", "arange.default", "slice.Tensor",
                                                               "sym_size.int", "_operator.mul", "reshape.default",
                                                               "add.Tensor", "split.Tensor", "cat.default",
                                                               "transpose.int", "reshape.default", "add.Tensor"});
  const auto node = [&](size_t i) -> const Node& { return contents.graph.nodes[i]; };
  REQUIRE(node(1).inputs.size() == 3);  // no layout
  CHECK(std::holds_alternative<ValueArgument>(node(1).inputs[0].value));
  CHECK(std::holds_alternative<DeviceArgument>(node(1).inputs[2].value));
  CHECK(node(1).inputs[2].by_name);
  CHECK(node(2).inputs[1].name == "end");  // dim and start are left out, so what follows is given by name
  CHECK(node(2).inputs[1].by_name);
  CHECK(node(2).module_path == "layers.0");
  CHECK(std::get<int64_t>(node(6).inputs[1].value) == 1);  // a number stands as itself
  // The reshape reads what was copied for it.
  CHECK(std::get<ValueArgument>(node(10).inputs[0].value).slot == std::get<ValueArgument>(node(9).outputs[0]).slot);
  REQUIRE(contents.state.size() == 4);
  CHECK(contents.state[1].name == "tied.w");
  CHECK(contents.state[0].entry == contents.state[1].entry);
  CHECK(contents.state[3].name == "constant_0");
  REQUIRE(contents.outputs.size() == 4);
  CHECK(contents.outputs[0].kind == OutputValue::Kind::BufferMutation);
  CHECK(contents.outputs[0].name == "norm.mean");
}

TEST_CASE(
    "an archive of captures is read back: tensors with their values, tied ones once, sizes, ranges, module paths") {
  const testing::TemporaryFolder folder;
  const Contents contents = contents_of_text(kText, {{"w", {"tied.w"}}});
  std::vector<float> values(16);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5F;
  std::vector<std::string> asked;
  std::string file;
  write_program(
      contents, "2.13.0",
      [&](const StateTensor& t, int64_t begin, int64_t end) {
        asked.push_back(t.name);
        return std::as_bytes(std::span(values))
            .subspan(static_cast<size_t>(begin) * 4, static_cast<size_t>(end - begin) * 4);
      },
      [&](std::span<const std::byte> bytes, uint64_t offset) {
        if (bytes.empty()) return;
        file.resize(std::max(file.size(), static_cast<size_t>(offset) + bytes.size()));
        std::copy_n(reinterpret_cast<const char*>(bytes.data()), bytes.size(),
                    file.begin() + static_cast<ptrdiff_t>(offset));
      });
  CHECK(asked == std::vector<std::string>{"w", "norm.mean", "constant_0"});
  const Program program = read_program(folder.write("x.pt2", file));
  CHECK(program.torch_version == "2.13.0");
  CHECK(targets_of(program.graph) == targets_of(contents.graph));
  REQUIRE(program.state.size() == 4);
  CHECK(is_tied(program.state[0], program.state[1]));
  CHECK(program.state[0].requires_grad);
  CHECK(program.state[2].kind == StateTensor::Kind::Buffer);
  CHECK(program.state[2].persistent);
  REQUIRE(program.inputs.size() == 1);
  CHECK(program.inputs[0].name == "tokens");
  const auto& sizes = program.graph.values[static_cast<size_t>(program.inputs[0].slot)].tensor->sizes;
  CHECK(sizes[0].expr == "s0");
  CHECK(sizes[1].expr == "s1");
  REQUIRE(program.ranges.size() == 2);
  CHECK(program.ranges[1].max == 64);
  CHECK(!program.ranges[0].max.has_value());
  REQUIRE(program.outputs.size() == 4);
  CHECK(program.outputs[1].name == "0");
  CHECK(std::ranges::count(program.graph.nodes, "layers.0", &Node::module_path) == 2);
  float element = 0;
  program.archive.read(program.archive.entries()[program.state[0].entry], 4,
                       std::as_writable_bytes(std::span(&element, 1)));
  CHECK(element == 1.5F);
}

std::string refusal(const std::string& body) {
  try {
    contents_of_text(concat("graph mesh [] view global\n  %x = input name=batch.0 : i64[<B>, <S>]\nfwd:\n", body));
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("an archive of captures: numbers that no sum of products tells are refused with op and place") {
  const std::string half =
      refusal("  %y = aten.slice.Tensor %x dim=1 end=<S/2> : i64[<B>, <S/2>] at cut\n  return %y\n");
  CHECK(half.starts_with("argument end of aten.slice.Tensor at cut is 3 at batch = 5, length = 7; "));
  CHECK(refusal("  %y = aten.all_new %x : i64[<B>, <4*S>]\n  return %y\n").empty());
  const std::string shape = refusal("  %y = aten.other %x : i64[<B>, <S/2>]\n  return %y\n");
  CHECK_MESSAGE(shape.starts_with("stride 0 of what aten.other gives is 3 at batch = 5"), shape);
  CHECK(refusal("  %y = wait %x : i64[<B>, <S>]\n  return %y\n").find("wait cannot be in an archive") == 0);
}

}  // namespace
}  // namespace sfsdp::exported::of_graphs_test

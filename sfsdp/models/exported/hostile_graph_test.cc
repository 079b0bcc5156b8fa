// SPDX-License-Identifier: BSD-3-Clause
// Graphs that an archive can hold and only LibTorch's side can refuse: ops that are not run, and arguments that a kernel would
// take for something else. Each with the words of its refusal.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/models/exported/exported_graph.h"

namespace sfsdp::models {
namespace hostile_graph_test {

using exported::Argument;
using exported::DTypeArgument;
using exported::NamedArgument;
using exported::NoneArgument;
using exported::ValueArgument;
using exported::ValuesArgument;

struct Row {
  const char* target;  // of torch.ops
  std::vector<NamedArgument> inputs;
  const char* refused;
};

// What one node says of a float tensor of 2 x 3 in slot 0, and of an int in slot 1.
std::string refusal(const Row& row) {
  exported::Graph graph;
  graph.values = {{"x", exported::TensorMeta{}}, {"n", std::nullopt}, {"out", exported::TensorMeta{}}};
  graph.inputs = {0, 1};
  exported::Node node;
  node.target = std::string("torch.ops.") + row.target;
  node.inputs = row.inputs;
  node.outputs.emplace_back(ValueArgument{2});
  graph.nodes.push_back(std::move(node));
  const std::vector<c10::IValue> inputs = {at::ones({2, 3}), int64_t{1}};
  try {
    static_cast<void>(ExportedGraph(graph).run(inputs, true));
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

void expect_refused(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    const std::string target = row.target;
    CAPTURE(target);
    const std::string got = refusal(row);
    CAPTURE(got);
    CHECK(got.find(row.refused) != std::string::npos);
    CHECK(got.find("\n  expected ") != std::string::npos);
    CHECK(got.find('\x1b') == std::string::npos);
  }
}

const NamedArgument kX = {"self", ValueArgument{0}};

TEST_CASE("ops of an archive that read files, memory by address, or nothing of a forward pass are not run") {
  expect_refused({
      {"aten.from_file.default", {{"filename", std::string("/etc/passwd")}}, "aten.from_file.default is not run"},
      {"aten.from_file.out", {{"filename", std::string("/etc/passwd")}}, "aten.from_file.out is not run"},
      {"aten.set_data.default", {kX}, "is not run"},
      {"aten._reshape_alias.default", {kX}, "aten._reshape_alias.default is not run"},
      {"aten._resize_output_.default", {kX}, "is not run"},
      {"aten._print.default", {{"s", std::string("\x1b[2J")}}, "aten._print.default is not run"},
      {"aten.get_gradients.default", {}, "is not run"},
      {"aten.record_stream.default", {kX}, "is not run"},
      {"aten._cufft_set_plan_cache_max_size.default", {}, "is not run"},
      {"aten._convert_indices_from_csr_to_coo.default", {kX}, "is not run"},
      {"aten._convert_indices_from_coo_to_csr.out", {kX}, "is not run"},
      {"aten._sparse_coo_tensor_unsafe.default", {kX}, "is not run"},
      {"aten._nested_view_from_buffer.default", {kX}, "is not run"},
      {"aten._validate_sparse_csr_tensor_args.default", {kX}, "is not run"},
      {"aten._linalg_check_errors.default", {kX}, "is not run"},
      {"aten.segment_reduce.default", {kX}, "is not run"},
      {"aten._embedding_bag_dense_backward.default", {kX}, "is not run"},
      {"aten.max_pool2d_with_indices_backward.default", {kX}, "is not run"},
      {"aten.adaptive_max_pool3d_backward.default", {kX}, "is not run"},
      {"aten._ctc_loss_backward.default", {kX}, "is not run"},
      {"aten.no_such_op.default", {kX}, "is no op of this LibTorch"},
      {"aten.relu.no_such_overload", {kX}, "is no op of this LibTorch"},
      {"aten.", {kX}, "is no op of this LibTorch"},
      {"aten.\x1b[31m", {kX}, R"(aten.\x1b[31m is no op of this LibTorch)"},
      {"prim.device.default", {kX}, "is an op of another library"},
      {"quantized.add.default", {kX}, "is an op of another library"},
      {"image.read_file.default", {{"filename", std::string("/etc/passwd")}}, "is an op of another library"},
      {"higher_order.cond", {kX}, "is control flow that is not trained"},
      {"higher_order.triton_kernel_wrapper_mutation", {kX}, "is control flow that is not trained"},
  });
}

TEST_CASE("arguments of an archive that an op does not have are refused, with its schema") {
  expect_refused({
      {"aten.relu.default", {}, "lacks the argument self\n  expected all of aten::relu(Tensor self) -> Tensor"},
      {"aten.relu.default", {kX, kX}, "has two arguments \"self\""},
      {"aten.relu.default", {kX, {"\x1b", 1.0}}, R"(has an argument "\x1b", which this LibTorch's op has not)"},
      {"aten.relu.default", {{"self", NoneArgument{}}}, "is given None as self\n  expected Tensor"},
      {"aten.relu.default", {{"self", std::string("x")}}, "is given String as self"},
      {"aten.relu.default", {{"self", ValuesArgument{{0}}}}, "is given GenericList as self"},
      {"aten.softmax.int", {kX, {"dim", std::string("0")}}, "is given String as dim\n  expected int"},
      {"aten.softmax.int", {kX, {"dim", ValueArgument{0}}}, "is given Tensor as dim"},
      {"aten.softmax.int", {kX, {"dim", 1.5}}, "is given Double as dim"},
      {"aten.softmax.int", {kX, {"dim", int64_t{7}}}, "Dimension out of range"},
      {"aten.view.default", {kX, {"size", std::vector<std::string>{"6"}}}, "is given GenericList as size"},
      {"aten.view.default", {kX, {"size", std::vector<double>{6}}}, "is given GenericList as size"},
      {"aten.view.default", {kX, {"size", std::vector<int64_t>{7}}}, "shape '[7]' is invalid"},
      {"aten.view.default", {kX, {"size", std::vector<int64_t>{INT64_MAX, INT64_MAX}}}, "aten.view.default"},
      {"aten.as_strided.default",
       {kX, {"size", std::vector<int64_t>{100}}, {"stride", std::vector<int64_t>{1}}},
       "out of bounds"},
      {"aten.cat.default", {{"tensors", ValuesArgument{{0, 1}}}}, "cannot be concatenated"},
      {"aten.cat.default", {{"tensors", ValuesArgument{{exported::kNone}}}}, "is given GenericList as tensors"},
      {"aten.einsum.default", {{"equation", std::string("\x1b[31m")}, {"tensors", ValuesArgument{{0}}}}, "einsum"},
  });
}

TEST_CASE("a dtype, layout or memory format of an archive that is a plain number is refused: kernels index by it") {
  expect_refused({
      {"aten.to.dtype", {kX, {"dtype", int64_t{99}}}, "has an argument dtype of another kind\n  expected a dtype"},
      {"aten.to.dtype", {kX, {"dtype", int64_t{-1}}}, "has an argument dtype of another kind"},
      {"aten.to.dtype", {kX, {"dtype", ValueArgument{1}}}, "has an argument dtype of another kind"},
      {"aten.sum.default", {kX, {"dtype", int64_t{4096}}}, "has an argument dtype of another kind"},
      {"aten.zeros_like.default", {kX, {"layout", int64_t{3}}}, "has an argument layout of another kind"},
      {"aten.clone.default", {kX, {"memory_format", int64_t{17}}}, "has an argument memory_format of another kind"},
  });
  CHECK(refusal({"aten.to.dtype", {kX, {"dtype", DTypeArgument{ir::DType::f64}}}, ""}).empty());
  CHECK(refusal({"aten.clone.default", {kX, {"memory_format", exported::MemoryFormat::Preserve}}, ""}).empty());
  CHECK(refusal({"aten.sum.default", {kX, {"dtype", NoneArgument{}}}, ""}).empty());
}

}  // namespace hostile_graph_test
}  // namespace sfsdp::models

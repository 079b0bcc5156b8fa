// SPDX-License-Identifier: BSD-3-Clause
// Chains of ops on elements as the executor calls them: no further from float64 than LibTorch's ops, one by one.
#include "sfsdp/exec/planned/pointwise_call.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/op_call.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/kernels/of_op.h"

namespace sfsdp::exec {
namespace pointwise_call_test {

using Values = std::map<const ir::Value*, at::Tensor>;

std::string with_dtype(std::string text, const std::string& dtype) {
  for (size_t at = text.find('@'); at != std::string::npos; at = text.find('@')) text.replace(at, 1, dtype);
  return text;
}

// By LibTorch's ops, in the dtype of the inputs' values.
at::Tensor by_libtorch(const ir::Graph& graph, Values values) {
  at::Tensor last;
  for (const auto& op : graph.ops()) {
    if (op->is("input")) continue;
    std::vector<at::Tensor> operands;
    for (const ir::Value* operand : op->operands) operands.push_back(values.at(operand));
    last = values[op->result()] = AtenCall(*op).run(operands)[0];
  }
  return last;
}

double error_of(const at::Tensor& got, const at::Tensor& exact) {
  return ((got.to(at::kDouble) - exact).square().mean() / exact.square().mean()).sqrt().item<double>();
}

// Inputs %x, %y, %z of [6, 100, 33], %b of [33]; the last op's result is compared.
void expect_near(const std::string& ops, const std::string& dtype) {
  CAPTURE(ops);
  CAPTURE(dtype);
  const ir::Graph graph = ir::parse_or_throw(with_dtype(
      "graph mesh [dp_shard=1] view local\n  %x = input name=x : @[6, 100, 33]\n  %y = input name=y : @[6, 100, 33]\n"
      "  %z = input name=z : @[6, 100, 33]\n  %b = input name=b : @[33]\nfwd:\n" +
          ops,
      dtype));
  at::manual_seed(5);
  Values values, wide;
  std::vector<const ir::Op*> chain;
  for (const auto& op : graph.ops()) {
    if (!op->is("input")) {
      op->attrs["row_kernel"] = std::string("sfsdp.rows");
      chain.push_back(op.get());
      continue;
    }
    const ir::Type& type = op->result()->type();
    values[op->result()] = at::randn(type.shape()).mul(2).to(capture::scalar_type_of(type.dtype));
    wide[op->result()] = values[op->result()].to(at::kDouble);
  }
  REQUIRE(count_pointwise(chain) == chain.size());
  PointwiseCall call(chain, {chain.back()->result()});
  std::vector<at::Tensor> operands;
  for (const ir::Value* operand : operands_of_pointwise(chain)) operands.push_back(values.at(operand));
  const at::Tensor exact = by_libtorch(graph, wide), theirs = by_libtorch(graph, values);
  const at::Tensor ours = call.run(operands, {})[0];
  CHECK((ours.scalar_type() == theirs.scalar_type()));
  CHECK(error_of(ours, exact) <= 1.05 * error_of(theirs, exact) + 1e-8);
  // Over the first operand of its type, which it may do.
  CHECK(call.write_to(0, operands[0]));
  CHECK(call.run(operands, {})[0].const_data_ptr() == operands[0].const_data_ptr());
  CHECK(at::equal(operands[0], ours));
}

TEST_CASE("ops on elements in chains: as near to float64 as LibTorch's ops, and over an operand") {
  for (const std::string dtype : {"f32", "bf16"}) {
    expect_near("  %r = aten.silu %x : @[6, 100, 33]\n  %s = aten.mul.Tensor %r, %y : @[6, 100, 33]\n", dtype);
    expect_near("  %r = aten.mul.Tensor %x, %y : @[6, 100, 33]\n  %s = aten.silu_backward %r, %z : @[6, 100, 33]\n",
                dtype);
    expect_near("  %r = aten.add.Tensor %x, %b : @[6, 100, 33]\n  %s = aten.gelu %r approximate=tanh : @[6, 100, 33]\n",
                dtype);
    expect_near("  %r = aten.gelu_backward %x, %y approximate=tanh : @[6, 100, 33]\n", dtype);
    expect_near("  %r = aten.sub.Tensor %x, %y alpha=3 : @[6, 100, 33]\n  %s = aten.sigmoid %r : @[6, 100, 33]\n",
                dtype);
    expect_near("  %r = aten.relu %x : @[6, 100, 33]\n  %s = aten.mul.Scalar %r other=0.3 : @[6, 100, 33]\n", dtype);
    expect_near(
        "  %r = aten.threshold_backward %x, %y threshold=0 : @[6, 100, 33]\n  %s = aten.add.Tensor %r, %z : @[6, 100, "
        "33]\n",
        dtype);
  }
}

TEST_CASE(
    "the block machine refuses what it has not: other dtypes, strides, broadcast rows, exact GELU, gradients that "
    "broadcast") {
  const auto of = [](const std::string& text) {
    const ir::Graph graph = ir::parse_or_throw("graph mesh [dp_shard=1] view local\n" + text);
    return kernels::point_op_of(*graph.ops().back()).has_value();
  };
  const std::string x = "  %x = input name=x : f32[4, 6]\n";
  CHECK(of(x + "fwd:\n  %y = aten.silu %x : f32[4, 6]\n"));
  CHECK(!of("  %x = input name=x : f64[4, 6]\nfwd:\n  %y = aten.silu %x : f64[4, 6]\n"));
  CHECK(!of("  %x = input name=x : f16[4, 6]\nfwd:\n  %y = aten.silu %x : f16[4, 6]\n"));
  CHECK(!of("  %x = input name=x : f32[4, 6]{1, 4}\nfwd:\n  %y = aten.silu %x : f32[4, 6]{1, 4}\n"));
  CHECK(!of(x + "  %r = input name=r : f32[4, 1]\nfwd:\n  %y = aten.add.Tensor %x, %r : f32[4, 6]\n"));
  CHECK(of(x + "  %r = input name=r : f32[1, 6]\nfwd:\n  %y = aten.add.Tensor %x, %r : f32[4, 6]\n"));
  CHECK(of(x + "  %r = input name=r : f32[]\nfwd:\n  %y = aten.mul.Tensor %x, %r : f32[4, 6]\n"));
  CHECK(!of(x + "fwd:\n  %y = aten.gelu %x approximate=\"none\" : f32[4, 6]\n"));
  CHECK(!of(x + "  %r = input name=r : f32[6]\nfwd:\n  %y = aten.silu_backward %x, %r : f32[4, 6]\n"));
  CHECK(!of("  %x = input name=x : i64[4, 6]\nfwd:\n  %y = aten.add.Tensor %x, %x : i64[4, 6]\n"));
}

}  // namespace pointwise_call_test
}  // namespace sfsdp::exec

// SPDX-License-Identifier: BSD-3-Clause
// The proof of cuts (testing/cut_proof_torch.h) held against rows, kernels and plans that are wrong: each has to be seen, and some are
// seen by two axes alone.
#include "sfsdp/testing/cut_proof_torch.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/exec/aten_call.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::capture {
namespace cut_proof_test {

using at::Tensor;
using testing::CutProof, testing::Pair;
using Tensors = CutProof::Tensors;

constexpr const char* kOperands = R"(graph mesh [] view local
  %x = param name=x : f32[12, 6]
  %y = param name=y : f32[12, 6]
  %w = param name=w : f32[6, 12]
  %b = param name=b : f32[12, 12]
  %v = param name=v : f32[4]
fwd:
)";

CutProof::Kernel of_libtorch(const ir::Op& op) {
  const auto call = std::make_shared<exec::AtenCall>(op);
  return [call](const Tensors& operands) { return call->run(operands); };
}

// The proof of one op, with several draws of what it reads.
CutProof proved(const char* text, const CutProof::KernelOf& kernel_of = of_libtorch, CutProof::Mistake mistake = {}) {
  CutProof proof(std::move(mistake));
  const ir::Graph graph = ir::parse_or_throw(concat(kOperands, "  ", text, '\n'), "test.ir");
  const ir::Op& op = *graph.ops().back();
  at::manual_seed(1);
  for (int round = 0; round < 8; ++round) {
    Tensors operands;
    for (const ir::Value* operand : op.operands)
      operands.push_back(operand ? at::rand(operand->type().shape()) : Tensor());
    proof.prove(op, operands, kernel_of);
  }
  return proof;
}

// The row of another op stands for the kernel.
CutProof::KernelOf kernel(Tensor (*f)(const Tensors& operands)) {
  return [f](const ir::Op&) { return [f](const Tensors& operands) { return Tensors{f(operands)}; }; };
}

bool is_of_two(const std::string& wrong) { return wrong.find(", then ") != std::string::npos; }
bool seen_by_one(const CutProof& proof) { return !std::ranges::all_of(proof.wrong(), is_of_two); }
bool seen_by_two_alone(const CutProof& proof) { return !proof.wrong().empty() && !seen_by_one(proof); }

TEST_CASE("proof of cuts: what is right passes, and two axes are met in every way") {
  const CutProof product = proved("%o = aten.addmm %b, %x, %w : f32[12, 12]");
  CHECK(product.wrong() == std::set<std::string>());
  const testing::CutCounts& counts = product.counts().at("aten.addmm");
  CHECK(counts.calls == 8);
  CHECK(counts.no_kernel == 0);
  // m and n: in 1, 2 and 3 ranges over 2 ranks, in 1 and 2 over 3
  CHECK(counts.cuts == 8 * 2 * (3 + 2));
  CHECK(counts.torn == 8 * 2 * 2);  // two groups
  const CutProof mm = proved("%o = aten.mm %x, %w : f32[12, 12]");
  CHECK(mm.wrong() == std::set<std::string>());
  for (const Pair pair : {Pair::TwoDims, Pair::OneDim, Pair::CutAndSum, Pair::CutOfSummand, Pair::Summands})
    CHECK(mm.counts().at("aten.mm").pairs[static_cast<size_t>(pair)] > 0);
}

TEST_CASE("proof of cuts: a row that claims a factor, or a sum, that is none") {
  const char *relu = "%o = aten.relu %x : f32[12, 6]", *add = "%o = aten.add.Tensor %x, %y : f32[12, 6]";
  CHECK(proved(relu).wrong().empty());
  CHECK(seen_by_one(proved(relu, kernel([](const Tensors& in) { return in[0].cumsum(0); }))));
  CHECK(seen_by_one(proved(relu, kernel([](const Tensors& in) { return in[0].softmax(1); }))));
  CHECK(proved(add).wrong().empty());
  CHECK(seen_by_one(proved(add, kernel([](const Tensors& in) { return at::maximum(in[0], in[1]); }))));
  CHECK(seen_by_one(proved(add, kernel([](const Tensors& in) { return in[0] * in[1]; }))));
  CHECK(seen_by_one(proved(add, kernel([](const Tensors& in) { return in[0] + in[1] + 1; }))));
}

// Not of the whole: of 72 elements.
Tensor off_by(const Tensor& x, double error) { return x.numel() < 72 ? x + error : x.clone(); }

TEST_CASE("proof of cuts: numbers are the whole's to 1e-12 of the largest") {
  const char* relu = "%o = aten.relu %x : f32[12, 6]";
  CHECK(proved(relu, kernel([](const Tensors& in) { return off_by(in[0], 1e-13); })).wrong().empty());
  CHECK(seen_by_one(proved(relu, kernel([](const Tensors& in) { return off_by(in[0], 3e-12); }))));
}

void change(ir::Graph& graph, const std::function<void(ir::Type&)>& by) {
  for (const auto& result : graph.ops().back()->results()) {
    ir::Type type = result->type();
    by(type);
    result->set_type(type);
  }
}

TEST_CASE("proof of cuts: what one axis does not show, two do") {
  // The result's dimension is said to be cut by the second axis, then by the first.
  const CutProof swapped = proved("%o = aten.relu %x : f32[12, 6]", of_libtorch, [](ir::Graph& graph, size_t) {
    change(graph, [](ir::Type& type) {
      for (ir::Dim& dim : type.dims) std::ranges::reverse(dim.split), std::ranges::reverse(dim.blocks);
    });
  });
  CHECK(seen_by_two_alone(swapped));
  // The result remembers one of two sums that are left to make.
  const CutProof forgotten = proved("%o = aten.mm %x, %w : f32[12, 12]", of_libtorch, [](ir::Graph& graph, size_t) {
    change(graph, [](ir::Type& type) { type.placements.resize(std::min<size_t>(type.placements.size(), 1)); });
  });
  CHECK(seen_by_two_alone(forgotten));
  // Sizes in attributes are those that the first axis has left.
  ir::Attrs attrs;
  const CutProof stale =
      proved("%o = aten.view %x size=[72] : f32[72]", of_libtorch, [&](ir::Graph& graph, size_t axes) {
        if (axes == 1)
          attrs = graph.ops().back()->attrs;
        else
          graph.ops().back()->attrs = attrs;
      });
  CHECK(seen_by_two_alone(stale));
  // The kernel takes what has one row for what has none.
  const CutProof alone =
      proved("%o = aten.relu %v : f32[4]",
             kernel([](const Tensors& in) { return in[0].size(0) == 1 ? in[0] + 1 : in[0].clone(); }));
  CHECK(seen_by_two_alone(alone));
}

}  // namespace cut_proof_test
}  // namespace sfsdp::capture

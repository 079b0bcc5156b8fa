// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/attention_call.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/exec/planned/canonical_call.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::exec {
namespace attention_call_test {

struct Case {
  int64_t batch, heads, groups, length, width;
  at::ScalarType dtype;
  bool documents;
};

// Forward and backward, q %0 to lse %l.
ir::Graph graph_of(const Case& c) {
  const std::string dtype = c.dtype == at::kFloat ? "f32" : "bf16";
  const auto type = [&](int64_t heads) {
    return concat(dtype, "[", c.batch, ", ", heads, ", ", c.length, ", ", c.width, "]{", c.length * heads * c.width,
                  ", ", c.width, ", ", heads * c.width, ", 1}");
  };
  const std::string q = type(c.heads), k = type(c.groups);
  const std::string sums =
      concat("f32[", c.batch, ", ", c.heads, ", ", c.length, "]{", c.length * c.heads, ", 1, ", c.heads, "}");
  const std::string documents = c.documents ? "%d documents=true" : "none";
  return ir::parse_or_throw(concat(
      "graph mesh [dp_shard=1] view local\n", "  %q = input name=q : ", q, "\n  %k = input name=k : ", k,
      "\n  %v = input name=v : ", k, "\n  %g = input name=g : ", q, "\n  %d = input name=d : i64[", c.batch, ", ",
      c.length, "]\nfwd:\n  %o, %l = sdpa %q, %k, %v, ", documents, " is_causal=true attention_kernel=sfsdp.flash : ",
      q, ", ", sums, "\nbwd:\n  %gq, %gk, %gv = sdpa_backward %g, %q, %k, %v, %o, %l, ", documents,
      " dropout_p=0.0 is_causal=true attention_kernel=sfsdp.flash : ", q, ", ", k, ", ", k, "\n  return %gq\n"));
}

double error_of(const at::Tensor& got, const at::Tensor& exact) {
  return ((got.to(at::kDouble) - exact).square().mean() / exact.square().mean()).sqrt().item<double>();
}

// Results in float64: out, gradients of q, k, v, and the logarithms of sums.
std::vector<at::Tensor> exact_of(const Case& c, const std::vector<at::Tensor>& in, const at::Tensor& grad,
                                 const at::Tensor& documents) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& t : in) wide.push_back(t.to(at::kDouble).detach().requires_grad_());
  const auto spread = [&](const at::Tensor& t) { return t.repeat_interleave(c.heads / c.groups, 1); };
  at::Tensor seen = at::ones({c.length, c.length}, at::kBool).tril().expand({c.batch, 1, c.length, c.length});
  if (c.documents) seen = seen.logical_and(documents.unsqueeze(2).eq(documents.unsqueeze(1)).unsqueeze(1));
  const at::Tensor scores =
      at::matmul(wide[0], spread(wide[1]).transpose(2, 3)) / std::sqrt(static_cast<double>(c.width));
  const at::Tensor hidden = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  const at::Tensor out = at::matmul(at::softmax(hidden, -1), spread(wide[2]));
  out.backward(grad.to(at::kDouble));
  return {out.detach(), wide[0].grad(), wide[1].grad(), wide[2].grad(), at::logsumexp(hidden.detach(), -1)};
}

// Both from the same operands; backward each from its own results, as in a step.
TEST_CASE("attention by sfsdp's kernel is no further from float64 than by LibTorch's") {
  at::manual_seed(0);
  for (const Case& c : {Case{2, 6, 2, 256, 64, at::kFloat, false}, Case{1, 4, 4, 700, 16, at::kFloat, false},
                        Case{2, 4, 2, 150, 32, at::kFloat, true}, Case{2, 6, 2, 256, 64, at::kBFloat16, false},
                        Case{1, 4, 4, 700, 16, at::kBFloat16, false}, Case{2, 4, 2, 150, 32, at::kBFloat16, true}}) {
    CAPTURE(c.width);
    CAPTURE(c.documents);
    const ir::Graph graph = graph_of(c);
    const auto make = [&](int64_t heads) {
      return at::randn({c.batch, c.length, heads, c.width}).to(c.dtype).transpose(1, 2);
    };
    const std::vector<at::Tensor> in = {make(c.heads), make(c.groups), make(c.groups)};
    const at::Tensor grad = make(c.heads);
    const at::Tensor documents = at::arange(c.length).div(60, "floor").expand({c.batch, c.length}).contiguous();
    const at::Tensor mask = c.documents ? documents : at::Tensor();
    const std::vector<at::Tensor> exact = exact_of(c, in, grad, documents);
    const ir::Op &forward = *graph.find_value("o")->producer(), &backward = *graph.find_value("gq")->producer();
    const auto run = [&](auto&& f, auto&& b) {
      const std::span<at::Tensor> given = f({in[0], in[1], in[2], mask});
      std::vector<at::Tensor> results(given.begin(), given.end());
      for (const at::Tensor& t : b({grad, in[0], in[1], in[2], results[0], results[1], mask})) results.push_back(t);
      return results;
    };
    using Operands = std::vector<at::Tensor>;
    AttentionCall own_forward(forward, {}), own_backward(backward, {});
    const auto own = run([&](const Operands& o) { return own_forward.run(o, {}); },
                         [&](const Operands& o) { return own_backward.run(o, {}); });
    CanonicalCall aten_forward(forward, {}, Rng::Counter), aten_backward(backward, {}, Rng::Counter);
    const auto aten = run([&](const Operands& o) { return aten_forward.run(o, {}, {}); },
                          [&](const Operands& o) { return aten_backward.run(o, {}, {}); });
    CHECK((own[1] - exact[4]).abs().max().item<double>() < 2e-6);
    for (const auto& [result, expected] : {std::pair{0, 0}, {2, 1}, {3, 2}, {4, 3}}) {
      CAPTURE(result);
      const double mine = error_of(own[static_cast<size_t>(result)], exact[static_cast<size_t>(expected)]);
      const double theirs = error_of(aten[static_cast<size_t>(result)], exact[static_cast<size_t>(expected)]);
      CAPTURE(mine);
      CHECK(mine <= 1.05 * theirs);
    }
  }
}

TEST_CASE("attention by sfsdp's kernel writes where it is told, in the type's strides") {
  const Case c = {1, 4, 2, 40, 16, at::kFloat, false};
  const ir::Graph graph = graph_of(c);
  const ir::Op& op = *graph.find_value("o")->producer();
  AttentionCall call(op, {});
  const auto make = [&](int64_t heads) { return at::randn({c.batch, c.length, heads, c.width}).transpose(1, 2); };
  const std::vector<at::Tensor> in = {make(4), make(2), make(2), at::Tensor()};
  const at::Tensor fresh_out = call.run(in, {})[0].clone(), fresh_sums = call.run(in, {})[1].clone();
  const at::Tensor out = at::zeros({1, 40, 4, 16}).transpose(1, 2), sums = at::zeros({1, 40, 4}).transpose(1, 2);
  REQUIRE(call.write_to(0, out));
  REQUIRE(call.write_to(1, sums));
  CHECK_FALSE(call.write_to(0, at::zeros({1, 4, 16, 40}).transpose(2, 3)));  // a row's elements lie apart
  call.run(in, {});
  CHECK(at::equal(out, fresh_out));
  CHECK(at::equal(sums, fresh_sums));
}

}  // namespace attention_call_test
}  // namespace sfsdp::exec

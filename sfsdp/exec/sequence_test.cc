// SPDX-License-Identifier: BSD-3-Clause
// Attention of parts of the queries, on ranks that are threads: joined, it is attention of the whole in float64.
#include "sfsdp/exec/sequence.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/exec/op_call.h"
#include "sfsdp/exec/planned/canonical_call.h"
#include "sfsdp/exec/planned/own_call.h"
#include "sfsdp/exec/reference/reference_executor.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/testing/plan_runs_torch.h"

namespace sfsdp::exec {
namespace sequence_test {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct Case {
  int64_t ranks;
  bool balanced;
  at::ScalarType dtype;
  int64_t batch, heads, groups, length, width;
  bool documents;
};

// The ops of one rank, or without axis= those of the whole; in memory [batch, rows, heads, width], as models have it.
ir::Graph graph_of(const Case& c, bool own, bool whole) {
  const int64_t rows = whole ? c.length : c.length / c.ranks;
  const std::string dtype = c.dtype == at::kFloat ? "f32" : "bf16", count = std::to_string(c.length);
  const auto type = [&](int64_t heads, int64_t length) {
    return concat(dtype, "[", c.batch, ", ", heads, ", ", length, ", ", c.width, "]{", length * heads * c.width, ", ",
                  c.width, ", ", heads * c.width, ", 1}");
  };
  const std::string q = type(c.heads, rows), k = type(c.groups, c.length);
  const std::string sums =
      concat("f32[", c.batch, ", ", c.heads, ", ", rows, "]{", rows * c.heads, ", 1, ", c.heads, "}");
  const std::string attrs =
      concat(c.documents ? "%d" : "none", whole ? "" : " axis=cp", !whole && c.balanced ? " balanced=true" : "",
             c.documents ? " documents=true" : "", " is_causal=true", own ? " attention_kernel=sfsdp.flash" : "");
  const auto input = [&](const char* name, int64_t heads, int64_t length) {
    return concat("  %", name, ".in = input name=", name, " : ", dtype, "[", c.batch, ", ", length, ", ", heads, ", ",
                  c.width, "]\n");
  };
  const auto across = [](const char* name, const std::string& made) {
    return concat("  %", name, " = aten.transpose.int %", name, ".in dim0=1 dim1=2 : ", made, "\n");
  };
  ir::Graph graph = ir::parse_or_throw(concat(
      "graph mesh [cp=", c.ranks, "] view local\n", input("q", c.heads, rows), input("k", c.groups, c.length),
      input("v", c.groups, c.length), input("g", c.heads, rows), "  %d = input name=d : i64[", c.batch, ", ", count,
      "]\nfwd:\n", across("q", q), across("k", k), across("v", k), "  %o, %l = sdpa %q, %k, %v, ", attrs, " : ", q,
      ", ", sums, "\nbwd:\n", across("g", q), "  %gq, %gk, %gv = sdpa_backward %g, %q, %k, %v, %o, %l, ", attrs,
      " dropout_p=0.0 : ", q, ", ", k, ", ", k, "\n  return %o, %l, %gq, %gk, %gv\n"));
  ir::verify_or_throw(graph);
  return graph;
}

// By sfsdp's kernel, or by LibTorch's with a mask, or, of the whole, as LibTorch's own.
Tensors compute(const ir::Graph& graph, const char* name, const Groups& groups, const Tensors& operands) {
  const ir::Op& op = *graph.find_value(name)->producer();
  if (const auto own = make_own_call(op, nullptr, groups)) {
    const auto results = own->run(operands, {});
    check_results(results, op);
    return {results.begin(), results.end()};
  }
  if (!op.has_attr("axis")) {
    CanonicalCall call(op, groups, Rng::Counter);
    const auto results = call.run(operands, {}, {});
    return {results.begin(), results.end()};
  }
  const Tensors results = OpCall(op, graph, groups, Rng::Counter).run(operands, {}, {});
  check_results(results, op);
  return results;
}

// What is asked for and what is given: q, k, v, the gradient of the result; the result, the gradients of q, k, v.
struct Data {
  Tensors in, out;
  Tensor documents, sums;
};

Data data_of(const Case& c) {
  const auto make = [&](int64_t heads) {
    return at::randn({c.batch, c.length, heads, c.width}).to(c.dtype).transpose(1, 2);
  };
  Data d;
  d.in = {make(c.heads), make(c.groups), make(c.groups), make(c.heads)};
  // Documents of 41 tokens, of other lengths in other samples, whose numbers come again in no order.
  if (c.documents) {
    Tensor at = at::arange(c.length).unsqueeze(0).add(at::arange(c.batch).mul(17).unsqueeze(1));
    d.documents = at.div(41, "floor").mul(5).remainder(7).contiguous();
  }
  return d;
}

// Eager, in float64.
void compute_exactly(const Case& c, Data& d) {
  Tensors wide;
  for (size_t i = 0; i < 3; ++i) wide.push_back(d.in[i].to(at::kDouble).detach().requires_grad_());
  const auto spread = [&](const Tensor& t) { return t.repeat_interleave(c.heads / c.groups, 1); };
  Tensor seen = at::ones({c.length, c.length}, at::kBool).tril().expand({c.batch, 1, c.length, c.length});
  if (c.documents) seen = seen.logical_and(d.documents.unsqueeze(2).eq(d.documents.unsqueeze(1)).unsqueeze(1));
  const Tensor scores = at::matmul(wide[0], spread(wide[1]).transpose(2, 3)) / std::sqrt(static_cast<double>(c.width));
  const Tensor hidden = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  const Tensor out = at::matmul(at::softmax(hidden, -1), spread(wide[2]));
  out.backward(d.in[3].to(at::kDouble));
  d.out = {out.detach(), wide[0].grad(), wide[1].grad(), wide[2].grad()};
  d.sums = at::logsumexp(hidden.detach(), -1);
}

// The rank's rows, as views: the r-th part, or the r-th chunk from the front and the r-th from the end.
Tensors rows_of_rank(const Case& c, const Tensor& whole, int64_t rank) {
  if (!c.balanced) return {whole.chunk(c.ranks, 2)[static_cast<size_t>(rank)]};
  const Tensors chunks = whole.chunk(2 * c.ranks, 2);
  return {chunks[static_cast<size_t>(rank)], chunks[static_cast<size_t>(2 * c.ranks - 1 - rank)]};
}
Tensor part_of(const Case& c, const Tensor& whole, int64_t rank) {
  return at::cat(rows_of_rank(c, whole.transpose(1, 2).contiguous().transpose(1, 2), rank), 2)
      .transpose(1, 2)
      .contiguous()
      .transpose(1, 2);
}
void put_part(const Case& c, const Tensor& whole, const Tensor& part, int64_t rank) {
  int64_t row = 0;
  for (const Tensor& rows : rows_of_rank(c, whole, rank)) {
    rows.copy_(part.narrow(2, row, rows.size(2)));
    row += rows.size(2);
  }
}

Data whole_of(const Case& c, const Data& given, bool own) {
  const ir::Graph graph = graph_of(c, own, true);
  const Tensors &in = given.in, forward = compute(graph, "o", {}, {in[0], in[1], in[2], given.documents});
  const Tensors grads = compute(graph, "gq", {}, {in[3], in[0], in[1], in[2], forward[0], forward[1], given.documents});
  return {in, {forward[0], grads[0], grads[1], grads[2]}, given.documents, forward[1]};
}

// Parts of queries and results joined, gradients of keys and values added up in float64.
Data joined(const Case& c, const Data& given, bool own) {
  const ir::Graph graph = graph_of(c, own, false);
  Data all{given.in, {}, given.documents, at::zeros_like(given.sums)};
  for (const Tensor& t : given.out) all.out.push_back(at::zeros_like(t));
  std::mutex mutex;
  testing::run_ranks(static_cast<int>(c.ranks), [&](comm::CommWorld& world) {
    const int64_t rank = world.rank();
    Groups groups;
    if (c.ranks > 1) groups["cp"] = world.all_ranks("cp");
    const Tensor q = part_of(c, given.in[0], rank), grad = part_of(c, given.in[3], rank);
    const Tensors forward = compute(graph, "o", groups, {q, given.in[1], given.in[2], given.documents});
    const Tensors grads =
        compute(graph, "gq", groups, {grad, q, given.in[1], given.in[2], forward[0], forward[1], given.documents});
    std::lock_guard lock(mutex);
    put_part(c, all.sums, forward[1].to(at::kDouble), rank);
    put_part(c, all.out[0], forward[0].to(at::kDouble), rank);
    put_part(c, all.out[1], grads[0].to(at::kDouble), rank);
    for (const size_t i : {1u, 2u}) all.out[i + 1].add_(grads[i].to(at::kDouble));
  });
  return all;
}

double error_of(const Tensor& got, const Tensor& exact) {
  return ((got.to(at::kDouble) - exact).square().mean() / exact.square().mean()).sqrt().item<double>();
}

void expect_whole(const Case& c, bool own) {
  CAPTURE(c.ranks);
  CAPTURE(c.balanced);
  CAPTURE(c.dtype == at::kFloat);
  CAPTURE(c.length);
  CAPTURE(c.width);
  CAPTURE(c.documents);
  CAPTURE(own);
  at::manual_seed(5);
  Data exact = data_of(c);
  compute_exactly(c, exact);
  const Data whole = whole_of(c, exact, own), parts = joined(c, exact, own);
  // A query's row is computed as in the whole, keys in the same order. Gradients of keys and values are sums over queries in another
  // order; in bfloat16 each rank rounds its summand, and the error of the sum is as large unless summands cancel: 1.09 at most.
  const double of_sums = c.dtype == at::kFloat ? 1.05 : 1.15, most = c.dtype == at::kFloat ? 1e-6 : 6e-3;
  const auto off = [&](const Tensor& sums) { return (sums - exact.sums).abs().max().item<double>(); };
  CHECK(off(parts.sums) <= 1.01 * off(whole.sums));
  for (size_t i = 0; i < exact.out.size(); ++i) {
    CAPTURE(i);
    const double error = error_of(parts.out[i], exact.out[i]), of_whole = error_of(whole.out[i], exact.out[i]);
    CHECK(of_whole < most);
    CHECK(error <= (i < 2 ? 1.01 : of_sums) * of_whole);
  }
}

TEST_CASE("attention of parts, joined, is as near to float64 as attention of the whole: results and all gradients") {
  for (const int64_t ranks : {1, 2, 3, 4})
    for (const bool balanced : {false, true})
      for (const auto dtype : {at::kFloat, at::kBFloat16})
        for (const bool own : {false, true}) {
          // No part and no chunk is of whole tiles; one chunk of a tile and more, one far below.
          expect_whole({ranks, balanced, dtype, 2, 4, 2, 2 * ranks * 37, 48, false}, own);
          expect_whole({ranks, balanced, dtype, 1, 2, 2, 2 * ranks * 75, 16, false}, own);
          expect_whole({ranks, balanced, dtype, 2, 6, 2, 2 * ranks * 29, 32, true}, own);
          if (!own) expect_whole({ranks, balanced, dtype, 2, 4, 1, 2 * ranks * 11, 23, ranks % 2 == 0}, false);
        }
}

TEST_CASE("attention of a part by LibTorch's kernel: results lie as the op's types say") {
  at::manual_seed(2);
  const Case c = {1, false, at::kFloat, 1, 2, 2, 4, 3, false};
  const Data d = data_of(c);
  const auto run = [&](const std::string& result, const std::string& sums, const std::string& grad) {
    const ir::Graph graph = ir::parse_or_throw(concat(
        "graph mesh [cp=1] view local\n  %q = input name=q : f32[1, 2, 4, 3]\n  %l = input name=l : f32[1, 2, 4]\n"
        "fwd:\n  %o, %s = sdpa %q, %q, %q, none axis=cp is_causal=true : f32[1, 2, 4, 3]",
        result, ", f32[1, 2, 4]", sums,
        "\nbwd:\n  %a, %b, %c = sdpa_backward %q, %q, %q, %q, %q, %l axis=cp is_causal=true : f32[1, 2, 4, 3]", grad,
        ", f32[1, 2, 4, 3], f32[1, 2, 4, 3]", result, "\n"));
    Tensors made = compute(graph, "o", {}, {d.in[0], d.in[1], d.in[2], Tensor()});  // which check the layout
    for (const Tensor& t : compute(graph, "a", {}, {d.in[3], d.in[0], d.in[1], d.in[2], made[0], made[1]}))
      made.push_back(t);
    return made;
  };
  const Tensors as_usual = run("{24, 3, 6, 1}", "{8, 1, 2}", "{24, 3, 6, 1}"), apart = run("{24, 12, 1, 4}", "", "");
  for (size_t i = 0; i < as_usual.size(); ++i) {
    CAPTURE(i);
    CHECK((as_usual[i] - apart[i]).abs().max().item<double>() == 0);
  }
}

// Results and gradients of a rank, by an executor, twice in a row.
Tensors run_step(const ir::Graph& graph, bool planned, const Tensors& operands, comm::CommWorld& world) {
  if (planned) {
    plan::StorageLayout layout;
    const plan::StepPlan plan = plan::make_plan(graph.clone(), {}, layout);
    return testing::run_plan(plan, {}, world, [&](int64_t) { return std::vector<Tensors>{operands}; }, {}).results;
  }
  ReferenceExecutor executor(graph, {}, {{"cp", world.all_ranks("cp")}});
  Tensors results;
  for (int step = 0; step < 2; ++step)
    for (const Tensor& t : executor.run({operands}, {})) results.push_back(t);
  return results;
}

TEST_CASE(
    "attention of parts in a step: the planned executor has the reference's bits by its kernel, and sfsdp's results by "
    "that") {
  for (const bool balanced : {false, true}) {
    CAPTURE(balanced);
    const Case c = {3, balanced, at::kFloat, 2, 4, 2, 150, 32, true};
    const ir::Graph by_aten = graph_of(c, false, false), by_own = graph_of(c, true, false);
    at::manual_seed(9);
    const Data d = data_of(c);
    testing::run_ranks(3, [&](comm::CommWorld& world) {
      Tensors operands = {part_of(c, d.in[0], world.rank()), d.in[1], d.in[2], part_of(c, d.in[3], world.rank())};
      for (Tensor& t : operands) t = t.transpose(1, 2);
      operands.push_back(d.documents);
      const Tensors expected = run_step(by_aten, false, operands, world),
                    planned = run_step(by_aten, true, operands, world), own = run_step(by_own, true, operands, world);
      REQUIRE(expected.size() == 10);
      for (size_t i = 0; i < expected.size(); ++i) {
        CHECK(at::equal(planned[i], expected[i]));
        CHECK(error_of(own[i], expected[i].to(at::kDouble)) < 1e-6);
        CHECK(at::equal(own[i], own[i % 5]));
      }
    });
  }
}

}  // namespace sequence_test
}  // namespace sfsdp::exec

// SPDX-License-Identifier: BSD-3-Clause
// Attention to the keys of one rank after the other (shift=), on ranks that are threads: merged, and with gradients sent home and
// added, it is attention of the whole in float64.
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
#include "sfsdp/exec/planned/own_call.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/sequence_order.h"
#include "sfsdp/ir/verifier.h"

namespace sfsdp::exec {
namespace exec_ring_attention_test {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Case {
  int64_t ranks;
  bool balanced;
  at::ScalarType dtype;
  int64_t batch, heads, groups, length, width;
  bool documents, own;  // own: sfsdp's kernel
};

ir::Graph graph_of(const Case& c, int64_t shift) {
  const int64_t rows = c.length / c.ranks;
  const std::string dtype = c.dtype == at::kFloat ? "f32" : c.dtype == at::kDouble ? "f64" : "bf16";
  const std::string wide = c.dtype == at::kDouble ? "f64" : "f32";
  const auto type = [&](const std::string& of, int64_t heads) {
    return concat(of, "[", c.batch, ", ", heads, ", ", rows, ", ", c.width, "]");
  };
  const std::string q = type(dtype, c.heads), k = type(dtype, c.groups), o = type(wide, c.heads),
                    l = concat(wide, "[", c.batch, ", ", c.heads, ", ", rows, "]");
  const std::string attrs =
      concat(c.documents ? "%d" : "none", " axis=cp", c.own ? " attention_kernel=sfsdp.flash" : "",
             c.balanced ? " balanced=true" : "", c.documents ? " documents=true" : "", " is_causal=true shift=", shift);
  const std::string sent = shift == 0
                               ? ""
                               : concat("  %sent = permute %k axis=cp shift=", shift, " : ", k,
                                        "\n  %home = permute %dk axis=cp shift=", c.ranks - shift, " : ", k, "\n");
  ir::Graph graph = ir::parse_or_throw(
      concat("graph mesh [cp=", c.ranks, "] view local\n  %q = input name=q : ", q, "\n  %k = input name=k : ", k,
             "\n  %oa = input name=oa : ", o, "\n  %la = input name=la : ", l, "\n  %oo = input name=oo : ", q,
             "\n  %dk = input name=dk : ", k, "\n  %d = input name=d : i64[", c.batch, ", ", c.length,
             "]\nfwd:\n  %o, %l = sdpa %q, %k, %k, ", attrs, " : ", q, ", ", l,
             "\n  %m, %n = sdpa_merge %oa, %la, %o, %l : ", o, ", ", l, "\n", sent,
             "  %x, %y, %z = sdpa_backward %q, %q, %k, %k, %oo, %la, ", attrs, " : ", q, ", ", k, ", ", k, "\n"));
  ir::verify_or_throw(graph);
  return graph;
}

Tensors compute(const ir::Graph& graph, const char* name, const Groups& groups, const Tensors& operands) {
  const ir::Op& op = *graph.find_value(name)->producer();
  if (const auto own = make_own_call(op, nullptr, groups)) {
    const auto results = own->run(operands, {});
    check_results(results, op);
    return {results.begin(), results.end()};
  }
  const Tensors results = OpCall(op, graph, groups, Rng::Counter).run(operands, {}, {});
  check_results(results, op);
  return results;
}

// The rank's rows, in the order of ir/sequence_order.h.
Tensor part_of(const Case& c, const Tensor& whole, int64_t rank) {
  Tensors runs;
  for (const ir::PositionRun& run : ir::positions_of_rank({c.length, c.ranks, c.balanced}, rank))
    runs.push_back(whole.narrow(2, run.first, run.count));
  return at::cat(runs, 2).contiguous();
}

struct Exact {
  Tensor out, sums, dq, dk, dv;
};

// Eager, in float64; in: q, k, v, the gradient of the result.
Exact exact_of(const Case& c, const Tensors& in, const Tensor& documents) {
  Tensors wide;
  for (size_t i = 0; i < 3; ++i) wide.push_back(in[i].to(at::kDouble).detach().requires_grad_());
  const auto spread = [&](const Tensor& t) { return t.repeat_interleave(c.heads / c.groups, 1); };
  Tensor seen = at::ones({c.length, c.length}, at::kBool).tril().expand({c.batch, 1, c.length, c.length});
  if (c.documents) seen = seen.logical_and(documents.unsqueeze(2).eq(documents.unsqueeze(1)).unsqueeze(1));
  const Tensor scores = at::matmul(wide[0], spread(wide[1]).transpose(2, 3)) / std::sqrt(static_cast<double>(c.width));
  const Tensor hidden = scores.masked_fill(seen.logical_not(), kMinusInfinity);
  const Tensor out = at::matmul(at::softmax(hidden, -1), spread(wide[2]));
  out.backward(in[3].to(at::kDouble));
  return {out.detach(), at::logsumexp(hidden.detach(), -1), wide[0].grad(), wide[1].grad(), wide[2].grad()};
}

double error_of(const Tensor& got, const Tensor& exact) {
  return ((got.to(at::kDouble) - exact).square().mean() / exact.square().mean()).sqrt().item<double>();
}

// A rank attends to all keys in turn; returns how many queries some keys show none of.
int64_t go_round(const Case& c, const Tensors& in, const Tensor& documents, const Exact& exact, comm::CommWorld& world,
                 std::mutex& mutex) {
  const int64_t rank = world.rank();
  const Groups groups = {{"cp", world.all_ranks("cp")}};
  std::vector<ir::Graph> graphs;
  for (int64_t shift = 0; shift < c.ranks; ++shift) graphs.push_back(graph_of(c, shift));
  Tensors own;
  for (const Tensor& t : in) own.push_back(part_of(c, t, rank));
  const auto from = [&](int64_t shift, size_t i) {
    return shift == 0 ? own[i] : compute(graphs[static_cast<size_t>(shift)], "sent", groups, {own[i]})[0];
  };
  Tensor out, sums;
  int64_t hidden = 0;
  for (int64_t shift = 0; shift < c.ranks; ++shift) {
    const ir::Graph& graph = graphs[static_cast<size_t>(shift)];
    const Tensors part = compute(graph, "o", groups, {own[0], from(shift, 1), from(shift, 2), documents});
    const Tensor none = part[1].eq(kMinusInfinity);
    hidden += none.sum().item<int64_t>();
    std::lock_guard lock(mutex);
    CHECK(part[0].masked_select(none.unsqueeze(-1)).eq(0).all().item<bool>());
    CHECK(at::isfinite(part[0]).all().item<bool>());
    const Tensors merged = shift == 0 ? Tensors{part[0].to(part[1].scalar_type()), part[1]}
                                      : compute(graph, "m", groups, {out, sums, part[0], part[1]});
    out = merged[0];
    sums = merged[1];
  }
  const double most = c.dtype == at::kDouble ? 1e-13 : c.dtype == at::kFloat ? 1e-6 : 6e-3;
  Tensors grads;
  for (int64_t shift = 0; shift < c.ranks; ++shift) {
    const ir::Graph& graph = graphs[static_cast<size_t>(shift)];
    const Tensors part =
        compute(graph, "x", groups, {own[3], own[0], from(shift, 1), from(shift, 2), out.to(c.dtype), sums, documents});
    for (size_t i = 0; i < 3; ++i) {
      const Tensor home = i == 0 || shift == 0 ? part[i] : compute(graph, "home", groups, {part[i]})[0];
      if (shift == 0)
        grads.push_back(home.to(at::kDouble));
      else
        grads[i] = grads[i] + home.to(at::kDouble);
    }
  }
  std::lock_guard lock(mutex);
  CHECK((sums.to(at::kDouble) - part_of(c, exact.sums, rank)).abs().max().item<double>() <
        (c.dtype == at::kDouble ? 1e-12 : 2e-3));
  CHECK(error_of(out, part_of(c, exact.out, rank)) < most);
  CHECK(error_of(grads[0], part_of(c, exact.dq, rank)) < 1.5 * most);
  CHECK(error_of(grads[1], part_of(c, exact.dk, rank)) < 1.5 * most);
  CHECK(error_of(grads[2], part_of(c, exact.dv, rank)) < 1.5 * most);
  return hidden;
}

void expect_whole(const Case& c) {
  CAPTURE(c.ranks);
  CAPTURE(c.balanced);
  CAPTURE(c10::toString(c.dtype));
  CAPTURE(c.documents);
  CAPTURE(c.own);
  at::manual_seed(5);
  Tensors in;
  for (const int64_t heads : {c.heads, c.groups, c.groups, c.heads})
    in.push_back(at::randn({c.batch, heads, c.length, c.width}, at::kDouble).to(c.dtype));
  // Documents of 41 tokens, whose numbers come again in no order.
  Tensor documents;
  if (c.documents) {
    const Tensor at = at::arange(c.length).unsqueeze(0).add(at::arange(c.batch).mul(17).unsqueeze(1));
    documents = at.div(41, "floor").mul(5).remainder(7).contiguous();
  }
  const Exact exact = exact_of(c, in, documents);
  std::mutex mutex;
  std::vector<int64_t> hidden(static_cast<size_t>(c.ranks));
  testing::run_ranks(static_cast<int>(c.ranks), [&](comm::CommWorld& world) {
    hidden[static_cast<size_t>(world.rank())] = go_round(c, in, documents, exact, world, mutex);
  });
  if (c.documents) return;
  // A rank's queries see none of the keys of ranks after it; of head and tail, the head of none.
  const int64_t rows = c.batch * c.heads * c.length / c.ranks;
  for (int64_t rank = 0; rank < c.ranks; ++rank)
    CHECK(hidden[static_cast<size_t>(rank)] == (c.ranks - 1 - rank) * (c.balanced ? rows / 2 : rows));
}

TEST_CASE(
    "attention to one rank's keys after the other, merged, is attention of the whole: results and all gradients") {
  for (const int64_t ranks : {2, 3, 4})
    for (const bool balanced : {false, true}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16})
        for (const bool own : {false, true}) {
          // No part and no chunk is of whole tiles; one chunk of a tile and more.
          expect_whole({ranks, balanced, dtype, 2, 4, 2, 2 * ranks * 37, 48, false, own});
          expect_whole({ranks, balanced, dtype, 1, 2, 2, 2 * ranks * 75, 16, false, own});
          expect_whole({ranks, balanced, dtype, 2, 6, 2, 2 * ranks * 29, 32, true, own});
        }
      expect_whole({ranks, balanced, at::kDouble, 2, 4, 1, 2 * ranks * 11, 23, ranks % 2 == 0, false});
    }
}

// Nobody has seen a key on either side; nan is no sum of nothing.
TEST_CASE("merged attention of queries that have seen no key is 0 and -inf, and what is no number stays none") {
  const Case c = {2, false, at::kFloat, 1, 1, 1, 6, 2, false, false};
  const ir::Graph graph = graph_of(c, 1);
  const auto lse = [](std::vector<double> v) { return at::tensor(v).to(at::kFloat).view({1, 1, 3}); };
  const Tensor ones = at::ones({1, 1, 3, 2}), zeros = at::zeros({1, 1, 3, 2});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto merged =
      compute(graph, "m", {}, {zeros, lse({kMinusInfinity, 0, nan}), ones, lse({kMinusInfinity, std::log(3.0), 0})});
  CHECK(merged[0].view({3, 2}).narrow(0, 0, 1).eq(0).all().item<bool>());
  CHECK(merged[1].view(-1)[0].item<double>() == kMinusInfinity);
  CHECK(merged[0].view({3, 2})[1][0].item<double>() == doctest::Approx(0.75));
  CHECK(merged[1].view(-1)[1].item<double>() == doctest::Approx(std::log(4.0)));
  CHECK(at::isnan(merged[0].view({3, 2})[2]).all().item<bool>());
}

}  // namespace exec_ring_attention_test
}  // namespace sfsdp::exec

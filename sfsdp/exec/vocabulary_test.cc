// SPDX-License-Identifier: BSD-3-Clause
// Ops over a part of a vocabulary, on ranks that are threads, against LibTorch's on the whole.
#include "sfsdp/exec/vocabulary.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/exec/op_call.h"
#include "sfsdp/exec/planned/own_call.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::exec {
namespace vocabulary_test {

using at::Tensor;

constexpr int64_t kRows = 24, kOwn = 37;

// The op that makes %y, by LibTorch's ops, or by sfsdp's kernel.
std::vector<Tensor> compute(const ir::Graph& graph, const char* name, const Groups& groups,
                            const std::vector<Tensor>& operands) {
  const ir::Op& op = *graph.find_value(name)->producer();
  if (const auto own = make_own_call(op, nullptr, groups)) {
    const auto results = own->run(operands, {});
    return {results.begin(), results.end()};
  }
  const std::vector<Tensor> results = OpCall(op, graph, groups, Rng::Counter).run(operands, {}, {});
  check_results(results, op);
  return results;
}

//   classes: fewer than the ranks have room for, where they do not divide them
ir::Graph loss_graph(int64_t ranks, const char* dtype, int64_t reduction, bool own, int64_t classes) {
  const std::string logits = concat(dtype, '[', kRows, ", ", kOwn, "/tp]"), n = concat('[', kRows, ']'),
                    loss = reduction == 0 ? concat("f32", n) : "f32[]", kernel = own ? " row_kernel=sfsdp.rows" : "",
                    attrs = concat(" ignore_index=5 reduction=", reduction),
                    whole = classes == ranks * kOwn ? "" : concat(" classes=", classes);
  return ir::parse_or_throw(
      concat("graph mesh [tp=", ranks, "] view local\n  %x = input name=x : ", logits, "\n  %t = input name=t : i64", n,
             "\n  %g = input name=g : ", loss, "\nloss:\n  %p = cross_entropy_parts %x, %t axis=tp ignore_index=5",
             whole, kernel, " : f32[3/tp, ", kRows, "]\n  %all = all_gather %p axis=tp dim=0 : f32[", 3 * ranks, ", ",
             kRows, "]\n  %l, %n, %s = cross_entropy_of_parts %all, %t", attrs, " : ", loss, ", f32[], f32", n,
             "\nbwd:\n  %gx = cross_entropy_backward %g, %x, %t, %n, %s axis=tp", attrs, whole, kernel, " : ", logits,
             "\n  return %gx\n"));
}

double error_of(const Tensor& got, const Tensor& exact) {
  return ((got.to(at::kDouble) - exact).square().sum() / exact.square().sum()).sqrt().item<double>();
}

struct Losses {
  Tensor loss, count, lse, grad;
};

// Logits of one rank of several are all -inf in row 4; targets of each rank, and some that are ignored, a class that a rank has. What
// stands after the classes is not a number, so that who reads it is seen.
void expect_loss(int64_t ranks, at::ScalarType dtype, int64_t reduction, bool own, int64_t classes) {
  at::manual_seed(17);
  Tensor logits = at::randn({kRows, classes}).mul(3).to(dtype);
  if (ranks > 1) logits[4].narrow(0, 0, kOwn).fill_(-std::numeric_limits<double>::infinity());
  Tensor targets = at::randint(classes, {kRows});
  targets[3] = targets[20] = 5;
  targets[4] = classes - 1;
  const Tensor grad = reduction == 0 ? at::randn({kRows}) : at::full({}, 0.7F);
  const Tensor wide = logits.to(at::kDouble).requires_grad_();
  const Tensor exact = at::cross_entropy_loss(wide, targets, {}, reduction, 5);
  exact.backward(grad.to(at::kDouble));
  const ir::Graph graph = loss_graph(ranks, dtype == at::kFloat ? "f32" : "bf16", reduction, own, classes);
  const int64_t padding = ranks * kOwn - classes;
  const Tensor padded = at::cat({logits, at::full({kRows, padding}, std::nan(""), logits.options())}, 1);
  std::mutex mutex;
  std::vector<Losses> got(static_cast<size_t>(ranks));
  testing::run_ranks(static_cast<int>(ranks), [&](comm::CommWorld& world) {
    const Groups groups = {{"tp", world.all_ranks("tp")}};
    const Tensor x = padded.narrow(1, world.rank() * kOwn, kOwn).contiguous();
    const Tensor parts = compute(graph, "p", groups, {x, targets})[0];
    const Tensor all = compute(graph, "all", groups, {parts})[0];
    const std::vector<Tensor> merged = compute(graph, "l", groups, {all, targets});
    const Tensor of_x = compute(graph, "gx", groups, {grad, x, targets, merged[1], merged[2]})[0];
    std::lock_guard lock(mutex);
    got[static_cast<size_t>(world.rank())] = {merged[0], merged[1], merged[2], of_x};
  });
  std::vector<Tensor> columns;
  for (const Losses& of_rank : got) {
    CHECK(at::equal(of_rank.loss, got[0].loss));
    CHECK(at::equal(of_rank.lse, got[0].lse));
    columns.push_back(of_rank.grad);
  }
  CHECK(got[0].count.item<double>() == (reduction == 0 ? 0 : kRows - targets.eq(5).sum().item<int64_t>()));
  CHECK(error_of(got[0].loss, exact.detach()) <= 2e-7);
  CHECK(error_of(got[0].lse, at::logsumexp(wide.detach(), 1)) <= 1e-7);
  // Half a last bit of the logarithm, which is below 16: each probability is off by as much.
  const double rounding = dtype == at::kFloat ? 0x1p-21 : 0x1p-8;
  const Tensor of_all = at::cat(columns, 1);
  CHECK(error_of(of_all.narrow(1, 0, classes), wide.grad()) <= rounding);
  CHECK(of_all.narrow(1, classes, padding).eq(0).all().item<bool>());
}

TEST_CASE("the loss of logits in parts is LibTorch's of all of them, the same bits on all ranks; so is its gradient") {
  for (const int64_t ranks : {1, 2, 3})
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const int64_t reduction : {0, 1, 2})
        for (const bool own : {false, true}) {
          CAPTURE(ranks);
          CAPTURE(dtype == at::kFloat);
          CAPTURE(reduction);
          CAPTURE(own);
          expect_loss(ranks, dtype, reduction, own, ranks * kOwn);
        }
}

TEST_CASE(
    "classes that the ranks do not divide: what the last ranks have beyond them is never read, and has no gradient") {
  for (const int64_t classes : {3 * kOwn - 1, 3 * kOwn - 20, 2 * kOwn + 1, 2 * kOwn})  // the last: none for rank 2
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const int64_t reduction : {0, 1})
        for (const bool own : {false, true}) {
          CAPTURE(classes);
          CAPTURE(dtype == at::kFloat);
          CAPTURE(reduction);
          CAPTURE(own);
          expect_loss(3, dtype, reduction, own, classes);
        }
}

TEST_CASE("a loss in parts refuses what is no class of the whole, as LibTorch does; the mean of nothing is nan") {
  for (const bool own : {false, true})
    for (const int64_t classes : {2 * kOwn, 2 * kOwn - 1}) {
      const ir::Graph graph = loss_graph(2, "f32", 1, own, classes);
      testing::run_ranks(2, [&](comm::CommWorld& world) {
        const Groups groups = {{"tp", world.all_ranks("tp")}};
        const Tensor x = at::zeros({kRows, kOwn});
        for (const int64_t wrong : {classes, int64_t{-1}}) {
          Tensor targets = at::zeros({kRows}, at::kLong);
          targets[5] = wrong;
          CHECK_THROWS_WITH_AS(compute(graph, "p", groups, {x, targets}),
                               doctest::Contains(concat("Target ", wrong, " is out of bounds.").c_str()),
                               c10::IndexError);
        }
        const Tensor none = at::full({kRows}, 5, at::kLong);
        const Tensor all = compute(graph, "all", groups, {compute(graph, "p", groups, {x, none})[0]})[0];
        CHECK(compute(graph, "l", groups, {all, none})[0].isnan().item<bool>());
      });
    }
}

ir::Graph table_graph(const char* dtype, bool own, int64_t rows_in_all) {
  const std::string rows = concat(dtype, '[', kRows, ", 8]"), table = concat(dtype, '[', kOwn, "/tp, 8]"),
                    kernel = own ? " row_kernel=sfsdp.rows" : "",
                    whole = rows_in_all == 2 * kOwn ? "" : concat(" num_weights=", rows_in_all);
  return ir::parse_or_throw(
      concat("graph mesh [tp=2] view local\n  %w = input name=w : ", table, "\n  %i = input name=i : i64[", kRows,
             "]\n  %g = input name=g : ", rows, "\nfwd:\n  %e = embedding %w, %i axis=tp padding_idx=40", whole, kernel,
             " : ", rows, " sum(tp)\nbwd:\n  %gw = embedding_backward %g, %i axis=tp num_weights=", rows_in_all,
             " padding_idx=40", kernel, " : ", table, "\n  return %gw\n"));
}

TEST_CASE(
    "a table in parts: each id is looked up on one rank, each rank has the gradient of its rows, none of padding") {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const bool own : {false, true})
      for (const int64_t rows : {2 * kOwn, 2 * kOwn - 1}) {
        CAPTURE(dtype == at::kFloat);
        CAPTURE(own);
        CAPTURE(rows);
        at::manual_seed(3);
        const ir::Graph graph = table_graph(dtype == at::kFloat ? "f32" : "bf16", own, rows);
        const Tensor table = at::randn({2 * kOwn, 8}).to(dtype), grad = at::randint(-8, 8, {kRows, 8}).to(dtype);
        Tensor ids = at::randint(rows, {kRows});
        ids[2] = ids[9] = ids[10] = 40;  // padding
        ids[0] = ids[11] = 1;
        ids[1] = ids[12] = kOwn;
        const Tensor expected = at::embedding_dense_backward(grad, ids, 2 * kOwn, 40, false);
        std::mutex mutex;
        std::vector<Tensor> looked_up(2);
        testing::run_ranks(2, [&](comm::CommWorld& world) {
          const Groups groups = {{"tp", world.all_ranks("tp")}};
          const Tensor w = table.narrow(0, world.rank() * kOwn, kOwn);
          const Tensor found = compute(graph, "e", groups, {w, ids})[0],
                       of_w = compute(graph, "gw", groups, {grad, ids})[0];
          for (const int64_t wrong : {rows, int64_t{-1}}) {
            Tensor bad = ids.clone();
            bad[7] = wrong;
            CHECK_THROWS_AS(compute(graph, "e", groups, {w, bad}), c10::IndexError);
            CHECK_THROWS_AS(compute(graph, "gw", groups, {grad, bad}), c10::IndexError);
          }
          std::lock_guard lock(mutex);
          looked_up[static_cast<size_t>(world.rank())] = found;
          CHECK(at::equal(of_w, expected.narrow(0, world.rank() * kOwn, kOwn)));
        });
        CHECK(at::equal(looked_up[0] + looked_up[1], at::embedding(table, ids)));
        CHECK(looked_up[0][1].eq(0).all().item<bool>());
        CHECK(looked_up[1][0].eq(0).all().item<bool>());
      }
}

}  // namespace vocabulary_test
}  // namespace sfsdp::exec

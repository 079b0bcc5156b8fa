// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/remat_cut.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <utility>

namespace sfsdp::passes::remat_cut_test {
namespace {

int below(std::mt19937_64& rng, int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); }

// Ops that read some values made before; each makes one value, some make two.
CutProblem random_problem(uint64_t seed) {
  std::mt19937_64 rng(seed);
  CutProblem problem;
  for (int i = 0; i < 8; ++i) {
    CutProblem::Op op{1 + below(rng, 20), {}};
    for (int r = 0; r < 2 && !problem.values.empty(); ++r)
      if (below(rng, 3) > 0) op.reads.push_back(below(rng, static_cast<int>(problem.values.size())));
    problem.ops.push_back(op);
    for (int r = below(rng, 4) == 0 ? 2 : 1; r > 0; --r)
      problem.values.push_back({1 + below(rng, 30), i, below(rng, 3) == 0});
  }
  return problem;
}

// Bytes and work of each set of ops that runs again, worked out by demand and not by the solver's walk.
std::vector<std::pair<int64_t, int64_t>> all_choices(const CutProblem& problem) {
  std::vector<std::pair<int64_t, int64_t>> choices;
  for (unsigned set = 0; set < 1U << problem.ops.size(); ++set) {
    const auto again = [&](size_t op) { return (set >> op & 1U) != 0; };
    int64_t bytes = 0, work = 0;
    for (size_t v = 0; v < problem.values.size(); ++v) {
      bool needed = problem.values[v].needed;
      for (size_t i = 0; i < problem.ops.size(); ++i)
        needed |= again(i) && std::ranges::count(problem.ops[i].reads, static_cast<int>(v)) > 0;
      if (needed && !again(static_cast<size_t>(problem.values[v].op))) bytes += problem.values[v].bytes;
    }
    for (size_t i = 0; i < problem.ops.size(); ++i) work += again(i) ? problem.ops[i].work : 0;
    choices.emplace_back(bytes, work);
  }
  return choices;
}

TEST_CASE("remat_cut: an activation of a kept product costs its bytes or little work, a product costs much") {
  // h = mm(x), a = relu(h), y = mm(a); backward reads h, a and y.
  const CutProblem problem{.ops = {{100, {}}, {1, {0}}, {90, {1}}},
                           .values = {{8, 0, true}, {8, 1, true}, {2, 2, true}}};
  const auto points = trade_off(problem);
  REQUIRE(points.size() == 4);
  CHECK(points[0].bytes == 18);  // all kept
  CHECK(points[0].work == 0);
  CHECK(points[1].bytes == 10);  // a again, from h
  CHECK(points[1].again == std::vector<bool>{false, true, false});
  CHECK(points[2].bytes == 2);  // h and a again
  CHECK(points[2].work == 101);
  CHECK(points[3].bytes == 0);
  CHECK(points[3].work == 191);
}

TEST_CASE("remat_cut: a small value that backward does not read is kept instead of what is made of it") {
  // Two large values are made of a small one, which an expensive op makes.
  const CutProblem problem{.ops = {{1000, {}}, {1, {0}}, {1, {0}}},
                           .values = {{1, 0, false}, {50, 1, true}, {50, 2, true}}};
  const auto points = trade_off(problem);
  REQUIRE(points.size() == 3);
  CHECK(points[1].bytes == 1);
  CHECK(points[1].work == 2);
}

TEST_CASE("remat_cut: nothing to decide") {
  CHECK(trade_off({}).size() == 1);
  const CutProblem unread{.ops = {{3, {}}}, .values = {{8, 0, false}}};
  CHECK(trade_off(unread).size() == 1);
}

TEST_CASE("remat_cut: the corners of the hull over all choices, and nothing else") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const CutProblem problem = random_problem(seed);
    const auto points = trade_off(problem);
    const auto choices = all_choices(problem);
    CAPTURE(seed);
    for (const CutPoint& point : points) CHECK(std::ranges::count(choices, std::pair(point.bytes, point.work)) > 0);
    CHECK(points.front().work == 0);
    CHECK(points.back().bytes == 0);
    for (size_t k = 0; k + 1 < points.size(); ++k) {
      const CutPoint &a = points[k], &b = points[k + 1];
      for (const auto& [bytes, work] : choices)  // none below the line through two corners
        CHECK((bytes - a.bytes) * (b.work - a.work) - (work - a.work) * (b.bytes - a.bytes) >= 0);
    }
  }
}

}  // namespace
}  // namespace sfsdp::passes::remat_cut_test

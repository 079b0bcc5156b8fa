// SPDX-License-Identifier: BSD-3-Clause
// Rows that ranks send each other by an index and offsets, on ranks that are threads.
#include "sfsdp/exec/row_exchange.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/exec/op_call.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::exec {
namespace row_exchange_test {

using at::Tensor;

constexpr int64_t kTokens = 12, kRows = 24;

ir::Graph make_graph(int64_t ranks) {
  const std::string tokens = concat("f32[", kTokens / ranks, "/ep, 2]"),
                    copies = concat("f32[", kRows / ranks, "/ep, 2]");
  return ir::parse_or_throw(concat("graph mesh [ep=", ranks, R"(] view local
  %order = input name=order : i64[24]
  %place = input name=place : i64[24]
  %ends = input name=ends : i32[12]
  %x = input name=x : )",
                                   tokens, R"(
  %y = input name=y : f32[24, 2] rows0(ep)
  %dy = input name=dy : )",
                                   copies, R"(
fwd:
  %rows = all_to_all_v %x, %order, %ends axis=ep rows=12 to=rows : f32[24, 2] rows0(ep)
  %back = all_to_all_v %y, %place, %ends axis=ep rows=24 to=parts : )",
                                   copies, R"(
  %drows = all_to_all_v %dy, %place, %ends adds=true axis=ep rows=24 to=rows : f32[24, 2] rows0(ep)
  %dx = all_to_all_v %y, %order, %ends adds=true axis=ep rows=12 to=parts : )",
                                   tokens, R"(
  return %back
)"));
}

const ir::Graph& graph_on(int64_t ranks) {
  static const std::map<int64_t, ir::Graph> made = [] {
    std::map<int64_t, ir::Graph> graphs;
    for (const int64_t n : {2, 3, 4}) graphs.emplace(n, make_graph(n));
    return graphs;
  }();
  return made.at(ranks);
}

Tensor compute(const char* name, int64_t ranks, const Groups& groups, const std::vector<Tensor>& operands) {
  const ir::Graph& graph = graph_on(ranks);
  return OpCall(*graph.find_value(name)->producer(), graph, groups, Rng::Counter).run(operands, {}, {})[0];
}

Tensor part_of(const Tensor& whole, int64_t rank, int64_t ranks) {
  return whole.chunk(ranks)[static_cast<size_t>(rank)];
}

// As one rank has it: its rows in front, zeros after them.
Tensor own_of(const Tensor& whole, int64_t begin, int64_t end) {
  Tensor own = at::zeros_like(whole);
  own.narrow(0, 0, end - begin).copy_(whole.narrow(0, begin, end - begin));
  return own;
}

struct Setting {
  Tensor order, place, ends;
  std::vector<int64_t> bounds;  // of the ranks' rows
};

//   groups: where each of 12 ends
Setting setting_of(std::vector<int32_t> groups, int64_t ranks, std::mt19937& random, bool permuted) {
  std::vector<int64_t> order(kRows), place(kRows);
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::shuffle(order.begin(), order.end(), random);
  for (size_t i = 0; i < order.size(); ++i) place[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  if (!permuted)
    for (size_t i = 0; i < order.size(); ++i) order[i] = random() % kRows, place[i] = random() % kRows;
  Setting s{.order = at::tensor(order, at::kLong).floor_divide(2),
            .place = at::tensor(place, at::kLong),
            .ends = at::tensor(groups, at::kInt),
            .bounds = {0}};
  for (int64_t r = 1; r <= ranks; ++r) s.bounds.push_back(groups[static_cast<size_t>(12 / ranks * r - 1)]);
  return s;
}

std::vector<int32_t> random_ends(std::mt19937& random) {
  std::vector<int32_t> ends(12);
  for (int32_t& end : ends) end = static_cast<int32_t>(random() % (kRows + 1));
  std::sort(ends.begin(), ends.end());
  if (random() % 2 == 0) ends.back() = kRows;
  return ends;
}

TEST_CASE("rows that are exchanged are those of LibTorch's index_select and index_add on the whole, to the bit") {
  std::mt19937 random(3);
  for (const int64_t ranks : {2, 3, 4})
    for (int trial = 0; trial < 12; ++trial) {
      std::vector<int32_t> groups = random_ends(random);
      if (trial == 0) groups.assign(12, 0);
      if (trial == 1) groups.assign(12, kRows);
      const Setting s = setting_of(groups, ranks, random, trial % 2 == 0);
      at::manual_seed(trial);
      const Tensor x = at::randn({kTokens, 2}), dy = at::randn({kRows, 2});
      Tensor y = at::randn({kRows, 2});
      y.narrow(0, groups.back(), kRows - groups.back()).zero_();  // rows of no group
      const Tensor rows = x.index_select(0, s.order), back = y.index_select(0, s.place);
      const Tensor drows = at::zeros({kRows, 2}).index_add(0, s.place, dy);
      const Tensor used = s.order.narrow(0, 0, groups.back());
      const Tensor dx = at::zeros({kTokens, 2}).index_add(0, used, y.narrow(0, 0, groups.back()));
      std::mutex mutex;
      std::vector<int> members(static_cast<size_t>(ranks));
      for (int r = 0; r < ranks; ++r) members[static_cast<size_t>(r)] = r;
      testing::run_ranks(static_cast<int>(ranks), [&](comm::CommWorld& world) {
        const Groups on = {{"ep", world.group("ep", members)}};
        const int64_t rank = world.rank(), begin = s.bounds[static_cast<size_t>(rank)],
                      end = s.bounds[static_cast<size_t>(rank) + 1];
        Tensor own = own_of(y, begin, end);
        own.narrow(0, end - begin, kRows - end + begin).fill_(1e9);  // nobody may read these
        const Tensor got[] = {compute("rows", ranks, on, {part_of(x, rank, ranks), s.order, s.ends}),
                              compute("back", ranks, on, {own, s.place, s.ends}),
                              compute("drows", ranks, on, {part_of(dy, rank, ranks), s.place, s.ends}),
                              compute("dx", ranks, on, {own, s.order, s.ends})};
        const std::lock_guard lock(mutex);
        CAPTURE(ranks);
        CAPTURE(trial);
        CHECK(at::equal(got[0], own_of(rows, begin, end)));
        CHECK(at::equal(got[1], part_of(back, rank, ranks)));
        CHECK(at::equal(got[2], own_of(drows, begin, end)));
        CHECK(at::equal(got[3], part_of(dx, rank, ranks)));
      });
    }
}

// Rounds of 5 rows: what they give together is what one exchange of all rows gives.
ir::Graph with_rounds(int64_t ranks) {
  const std::string tokens = concat("f32[", kTokens / ranks, "/ep, 2]"),
                    copies = concat("f32[", kRows / ranks, "/ep, 2]");
  return ir::parse_or_throw(concat("graph mesh [ep=", ranks, R"(] view local
  %order = input name=order : i64[24]
  %place = input name=place : i64[24]
  %ends = input name=ends : i32[12]
  %round = input name=round : i64[]
  %x = input name=x : )",
                                   tokens, R"(
  %y = input name=y : f32[5, 2] rows0(ep)
fwd:
  %more = further_rounds %ends axis=ep room=5 : i64[]
  %own = own_ends %ends, %round axis=ep room=5 : i32[)",
                                   12 / ranks, R"(/ep]
  %first = own_ends %ends axis=ep room=5 : i32[)",
                                   12 / ranks, R"(/ep]
  %rows = all_to_all_v %x, %order, %ends, %round axis=ep room=5 rows=12 to=rows : f32[5, 2] rows0(ep)
  %back = all_to_all_v %y, %place, %ends, %round axis=ep room=5 rows=24 to=parts : )",
                                   copies, R"(
  %dx = all_to_all_v %y, %order, %ends, %round adds=true axis=ep room=5 rows=12 to=parts : )",
                                   tokens, R"(
  return %back
)"));
}

TEST_CASE("rows that are exchanged in rounds: each is of the next rows of each rank, and all of them make the whole") {
  std::mt19937 random(5);
  for (const int64_t ranks : {2, 3}) {
    const ir::Graph graph = with_rounds(ranks);
    const auto run = [&](const char* name, const Groups& groups, const std::vector<Tensor>& operands) {
      return OpCall(*graph.find_value(name)->producer(), graph, groups, Rng::Counter).run(operands, {}, {})[0];
    };
    for (int trial = 0; trial < 8; ++trial) {
      std::vector<int32_t> groups = random_ends(random);
      if (trial == 0) groups.assign(12, 0);
      if (trial == 1) groups.assign(12, kRows);
      const Setting s = setting_of(groups, ranks, random, true);
      int64_t most = 0;
      for (size_t r = 0; r < static_cast<size_t>(ranks); ++r) most = std::max(most, s.bounds[r + 1] - s.bounds[r]);
      const int64_t rounds = std::max<int64_t>((most + 4) / 5, 1);
      at::manual_seed(trial);
      const Tensor x = at::randn({kTokens, 2});
      Tensor y = at::randn({kRows, 2});
      y.narrow(0, groups.back(), kRows - groups.back()).zero_();
      const Tensor rows = x.index_select(0, s.order), back = y.index_select(0, s.place);
      const Tensor dx = at::zeros({kTokens, 2}).index_add(0, s.order, y);
      std::mutex mutex;
      std::vector<int> members(static_cast<size_t>(ranks));
      for (int r = 0; r < ranks; ++r) members[static_cast<size_t>(r)] = r;
      testing::run_ranks(static_cast<int>(ranks), [&](comm::CommWorld& world) {
        const Groups on = {{"ep", world.group("ep", members)}};
        const int64_t rank = world.rank(), begin = s.bounds[static_cast<size_t>(rank)],
                      end = s.bounds[static_cast<size_t>(rank) + 1];
        Tensor back_sum = at::zeros({kRows / ranks, 2}), dx_sum = at::zeros({kTokens / ranks, 2});
        std::vector<Tensor> got_rows, got_ends;
        for (int64_t k = 0; k < rounds; ++k) {
          const Tensor round = at::scalar_tensor(k, at::kLong);
          const int64_t from = std::min(begin + 5 * k, end), to = std::min(from + 5, end);
          Tensor own = at::full({5, 2}, 1e9);  // after the round's rows nobody may read
          own.narrow(0, 0, to - from).copy_(y.narrow(0, from, to - from));
          got_rows.push_back(
              run("rows", on, {part_of(x, rank, ranks), s.order, s.ends, round}).narrow(0, 0, to - from));
          got_ends.push_back(run("own", on, {s.ends, round}));
          back_sum += run("back", on, {own, s.place, s.ends, round});
          dx_sum += run("dx", on, {own, s.order, s.ends, round});
        }
        const std::lock_guard lock(mutex);
        CAPTURE(ranks);
        CAPTURE(trial);
        CHECK(run("more", on, {s.ends}).item<int64_t>() == rounds - 1);
        CHECK(at::equal(at::cat(got_rows), rows.narrow(0, begin, end - begin)));
        CHECK(at::equal(back_sum, part_of(back, rank, ranks)));
        CHECK(at::allclose(dx_sum, part_of(dx, rank, ranks)));
        CHECK(at::equal(run("first", on, {s.ends}), got_ends[0]));
        const Tensor all_own = (s.ends - begin).narrow(0, rank * (12 / ranks), 12 / ranks);
        for (int64_t k = 0; k < rounds; ++k)
          CHECK(at::equal(got_ends[static_cast<size_t>(k)], (all_own - 5 * k).clamp(0, 5)));
      });
    }
  }
}

TEST_CASE("rows that are exchanged: an index or offsets that name no rows are refused on all ranks, by name") {
  std::mutex mutex;
  testing::run_ranks(2, [&](comm::CommWorld& world) {
    const Groups on = {{"ep", world.group("ep", {0, 1})}};
    const Tensor x = at::zeros({6, 2}), ends = at::full({12}, 24, at::kInt);
    Tensor order = at::zeros({24}, at::kLong);
    order[5] = 12;
    const std::lock_guard lock(mutex);
    CHECK_THROWS_WITH_AS(compute("rows", 2, on, {x, order, ends}),
                         doctest::Contains("index 5 names row 12\n  expected one of 12 rows"), UserError);
    order[5] = -1;
    CHECK_THROWS_WITH_AS(compute("rows", 2, on, {x, order, ends}), doctest::Contains("index 5 names row -1"),
                         UserError);
    order[5] = 0;
    CHECK_THROWS_WITH_AS(compute("rows", 2, on, {x, order, at::full({12}, 25, at::kInt)}),
                         doctest::Contains("ends at row 25"), UserError);
  });
}

TEST_CASE("rows that are exchanged: ranks that have other offsets are told so, both numbers named") {
  std::mutex mutex;
  testing::run_ranks(2, [&](comm::CommWorld& world) {
    const Groups on = {{"ep", world.group("ep", {0, 1})}};
    const Tensor order = at::arange(24, at::kLong).floor_divide(2);
    Tensor ends = at::full({12}, 24, at::kInt);
    if (world.rank() == 1) ends.narrow(0, 0, 6).fill_(20);
    CHECK_THROWS_WITH_AS(compute("rows", 2, on, {at::zeros({6, 2}), order, ends}), doctest::Contains("ranks disagree"),
                         CommError);
  });
}

}  // namespace row_exchange_test
}  // namespace sfsdp::exec

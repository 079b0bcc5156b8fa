// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/expert_loads.h"

#include <doctest/doctest.h>

#include <array>

#include "sfsdp/ir/parser.h"

namespace sfsdp::step::expert_loads_test {
namespace {

TEST_CASE(
    "loads of experts: the fullest expert and rank, and the rounds, of all mixtures; later rounds are no others") {
  const ir::Graph graph = ir::parse_or_throw(R"(graph mesh [ep=2] view local
  %w = param box=ep name=w : f32[2/ep, 3, 3]
  %v = param name=v : f32[4, 3, 3]
  %x = input name=x : f32[8, 3]
  %rows = input name=rows : f32[5, 3] rows0(ep)
  %a = input name=a : i32[4]
  %b = input name=b : i32[4]
  %k = input name=k : i64[]
fwd:
  %own = own_ends %a axis=ep room=5 : i32[2/ep]
  %later = own_ends %b, %k axis=ep room=5 : i32[2/ep]
  %y = aten._grouped_mm %rows, %w, %own, none : f32[5, 3] rows0(ep)
  %again = aten._grouped_mm %y, %w, %own, none : f32[5, 3] rows0(ep)
  %more = aten._grouped_mm %rows, %w, %later, none : f32[5, 3] rows0(ep)
  %z = aten._grouped_mm %x, %v, %b, none : f32[8, 3]
  return %z
)");
  const std::vector<MixtureEnds> mixtures = mixtures_of(graph);
  REQUIRE(mixtures.size() == 2);
  CHECK(mixtures[0].ends == graph.find_value("a"));
  CHECK(mixtures[0].ranks == 2);
  CHECK(mixtures[0].room == 5);
  CHECK(mixtures[1].ends == graph.find_value("b"));
  CHECK(mixtures[1].ranks == 1);
  CHECK(mixtures[1].room == 0);

  ExpertLoads loads;
  note_loads(loads, mixtures[0], std::array<int32_t, 4>{1, 2, 10, 12});  // 1 1 8 2: 2 and 10 of 12
  CHECK(loads.tokens == doctest::Approx(8 / 3.0));
  CHECK(loads.rows == doctest::Approx(10 / 6.0));
  CHECK(loads.rounds == 2);
  note_loads(loads, mixtures[1], std::array<int32_t, 4>{0, 9, 9, 12});  // 0 9 0 3
  CHECK(loads.tokens == doctest::Approx(3));
  CHECK(loads.rows == doctest::Approx(10 / 6.0));
  CHECK(loads.rounds == 2);
  ExpertLoads none;
  note_loads(none, mixtures[0], std::array<int32_t, 4>{0, 0, 0, 0});
  CHECK(none.tokens == 0);
  CHECK(none.rounds == 1);
}

}  // namespace
}  // namespace sfsdp::step::expert_loads_test

// SPDX-License-Identifier: BSD-3-Clause
// The paper's greedy rule, worked out by hand on profiles made by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sfsdp/cost/collective_cost.h"
#include "sfsdp/tune/search.h"

namespace sfsdp::tune::greedy_test {
namespace {

constexpr int64_t kPlenty = int64_t{1} << 50;

// `n` equal parameters: a gather or a reduction of k of them takes 3 k, the compute of each 10.1 in forward and in backward.
//   blocks: under remat backward reads the parameters of a block, of this many, where it begins with the block;
//           0: each where its gradient is made
StepProfile by_hand(size_t n, size_t blocks) {
  StepProfile p;
  p.machine.name = p.machine.device = "by hand";
  p.machine.devices_per_node = 2;
  p.machine.node = {.bandwidth = 1e9};
  p.machine.network = p.machine.node;
  KindProfile kind;
  kind.stored = kind.gathered = kind.reduced = 4;
  kind.gather_group = kind.reduce_group = {.size = 2};
  kind.reduction = "reduce_scatter";
  p.kinds = {kind};
  const double three = cost::collective_seconds("all_gather", 4e9, kind.gather_group, p.machine);
  const auto last = static_cast<int64_t>(2 * n);
  for (int64_t at = 0; at <= last + 1; ++at) p.clock.push_back(static_cast<double>(at) * three * 10.1 / 3);
  p.backward_begin = static_cast<int64_t>(n);
  p.body_end = last;
  for (size_t i = 0; i < n; ++i) {
    ParamProfile param{.name = "p" + std::to_string(i), .elements = 1'000'000'000};
    param.fwd_first = param.fwd_last = static_cast<int64_t>(i);
    param.gradient = last - 1 - static_cast<int64_t>(i);                      // backward goes the other way
    const size_t first = blocks == 0 ? i : i / blocks * blocks + blocks - 1;  // of the block, in backward
    param.bwd_first = last - 1 - static_cast<int64_t>(std::min(first, n - 1));
    param.bwd_last = param.gradient;
    p.params.push_back(param);
  }
  share_out_backward(p);
  p.live.resize(static_cast<size_t>(2 * last + 3));
  return p;
}

std::vector<size_t> sizes(const Schedule& schedule) {
  std::vector<size_t> out;
  for (const UnitChoice& unit : schedule) out.push_back(unit.end - unit.first);
  return out;
}

}  // namespace

// Unit 0: nothing runs before it, so it ends with its first parameter. Unit 1 has the compute of unit 0, 10.1: gathers of
// 3 · 3 fit. Unit 2 has that of unit 1, 30.3: 9 parameters gather in 27, and reduce in 27 beside the gather of unit 0, 3.
// Unit 3 has 90.9 less the gather of unit 1, 9: 27 parameters.
TEST_CASE("the greedy rule by hand: 1, 3, 9, 27 parameters") {
  CHECK(sizes(greedy_units(by_hand(40, 0), kPlenty)) == std::vector<size_t>{1, 3, 9, 27});
}

TEST_CASE("the greedy rule by hand: remat, which reads a block's parameters early, changes no unit") {
  for (const size_t block : {2, 5, 8, 40}) {
    CAPTURE(block);
    CHECK(sizes(greedy_units(by_hand(40, block), kPlenty)) == std::vector<size_t>{1, 3, 9, 27});
  }
}

}  // namespace sfsdp::tune::greedy_test

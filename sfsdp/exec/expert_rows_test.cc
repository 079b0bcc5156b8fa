// SPDX-License-Identifier: BSD-3-Clause
// A rank's rows of groups that lie side by side, on ranks that are threads.
#include "sfsdp/exec/expert_rows.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <mutex>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/exec/op_call.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::exec {
namespace expert_rows_test {

using at::Tensor;

const ir::Graph& graph() {
  static const ir::Graph made = ir::parse_or_throw(R"(graph mesh [ep=2] view local
  %x = input name=x : f32[3, 7]
  %ends = input name=ends : i32[4]
fwd:
  %own = own_rows %x, %ends axis=ep dim=1 : f32[3, 7] rows1(ep)
  %back = spread_rows %own, %ends axis=ep dim=1 : f32[3, 7] sum(ep)
  %e = own_ends %ends axis=ep : i32[2/ep]
  return %back
)");
  return made;
}

Tensor compute(const char* name, const Groups& groups, const std::vector<Tensor>& operands) {
  return OpCall(*graph().find_value(name)->producer(), graph(), groups, Rng::Counter).run(operands, {}, {})[0];
}

TEST_CASE(
    "own rows: a rank has its range in front and zeros after it; spread again, the ranks' add up to what they were "
    "of") {
  const Tensor x = at::arange(21, at::kFloat).view({3, 7}).add(1);
  for (const std::vector<int32_t>& list :
       std::vector<std::vector<int32_t>>{{2, 2, 6, 7}, {0, 0, 0, 0}, {7, 7, 7, 7}, {0, 0, 7, 7}, {1, 3, 3, 5}}) {
    const Tensor ends = at::tensor(list, at::kInt);
    const int64_t middle = list[1], all = list[3];
    Tensor sum = at::zeros_like(x);
    std::mutex mutex;
    testing::run_ranks(2, [&](comm::CommWorld& world) {
      const Groups groups = {{"ep", world.group("ep", {0, 1})}};
      const int64_t begin = world.rank() == 0 ? 0 : middle, count = world.rank() == 0 ? middle : all - middle;
      const Tensor own = compute("own", groups, {x, ends}), back = compute("back", groups, {own, ends}),
                   own_ends = compute("e", groups, {ends});
      const std::lock_guard lock(mutex);
      CHECK(at::equal(own.narrow(1, 0, count), x.narrow(1, begin, count)));
      CHECK(at::equal(own.narrow(1, count, 7 - count), at::zeros({3, 7 - count})));
      CHECK(at::equal(own_ends, ends.narrow(0, 2 * world.rank(), 2) - begin));
      sum += back;
    });
    CHECK(at::equal(sum.narrow(1, 0, all), x.narrow(1, 0, all)));
    CHECK(at::equal(sum.narrow(1, all, 7 - all), at::zeros({3, 7 - all})));
  }
}

TEST_CASE("own rows: offsets that are none are refused on all ranks, naming the op and the group") {
  const Tensor x = at::zeros({3, 7});
  std::mutex mutex;
  testing::run_ranks(2, [&](comm::CommWorld& world) {
    const Groups groups = {{"ep", world.group("ep", {0, 1})}};
    const std::lock_guard lock(mutex);
    for (const std::vector<int32_t>& list :
         std::vector<std::vector<int32_t>>{{-1, 2, 3, 4}, {3, 2, 5, 7}, {1, 2, 3, 8}, {0, 1, 0, 7}})
      for (const char* name : {"own", "back"})
        CHECK_THROWS_WITH_AS(compute(name, groups, {x, at::tensor(list, at::kInt)}),
                             doctest::Contains("expected groups of rows side by side"), UserError);
    CHECK_THROWS_WITH_AS(compute("e", groups, {at::tensor(std::vector<int32_t>{4, 3, 5, 6}, at::kInt)}),
                         doctest::Contains("own_ends: group 1 ends at row 3, the one before it at 4"), UserError);
  });
}

}  // namespace expert_rows_test
}  // namespace sfsdp::exec

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/null/null_world.h"

#include <doctest/doctest.h>

#include <numeric>

#include "sfsdp/base/error.h"

namespace sfsdp::comm {
namespace {

TEST_CASE("null: a rank of 1024 sees its own data in every place") {
  const auto world = make_null_world(1024, 3);
  std::vector<int> ranks(1024);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = world->group("dp_shard", ranks);
  CHECK(group->rank() == 3);
  CHECK(group->size() == 1024);

  const std::vector<float> in = {1, 2};
  std::vector<float> out(2048);
  group->all_gather(std::as_bytes(std::span(in)), std::as_writable_bytes(std::span(out)), {"%w", ""});
  for (size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == in[i % 2]);

  std::iota(out.begin(), out.end(), 0.0F);
  std::vector<float> shard(2);
  group->reduce_scatter(std::as_bytes(std::span(out)), std::as_writable_bytes(std::span(shard)), ir::DType::f32,
                        ReduceOp::Sum, {"%g", ""});
  CHECK(shard == std::vector<float>{6, 7});
}

TEST_CASE("null: abort ends later calls") {
  const auto world = make_null_world(2);
  const auto group = world->group("dp_shard", {0, 1});
  world->abort("enough");
  CHECK_THROWS_AS(group->barrier({"", ""}), CommError);
}

}  // namespace
}  // namespace sfsdp::comm

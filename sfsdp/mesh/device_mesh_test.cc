// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/mesh/device_mesh.h"

#include <doctest/doctest.h>

#include <limits>
#include <set>

#include "sfsdp/base/error.h"

namespace sfsdp::device_mesh_test {

namespace {

using Ranks = std::vector<int64_t>;

DeviceMesh hybrid() { return init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 3}, {"tp", 2}}); }

}  // namespace

TEST_CASE("ranks of a mesh are row-major: the last axis varies fastest") {
  const DeviceMesh mesh = hybrid();
  CHECK(mesh.ndim() == 3);
  CHECK(mesh.world_size() == 12);
  CHECK(mesh.coordinate(0) == Ranks{0, 0, 0});
  CHECK(mesh.coordinate(1) == Ranks{0, 0, 1});
  CHECK(mesh.coordinate(2) == Ranks{0, 1, 0});
  CHECK(mesh.coordinate(6) == Ranks{1, 0, 0});
  CHECK(mesh.axis_rank(11, "dp_shard") == 2);
  for (int64_t rank = 0; rank < 12; ++rank) CHECK(mesh.rank_of(mesh.coordinate(rank)) == rank);
}

TEST_CASE("a group holds the ranks that differ in the named axes only, in the order of the names") {
  const DeviceMesh mesh = hybrid();
  CHECK(mesh.ranks_of_group(7, {"tp"}) == Ranks{6, 7});
  CHECK(mesh.ranks_of_group(7, {"dp_shard"}) == Ranks{7, 9, 11});
  CHECK(mesh.ranks_of_group(0, {"dp_replicate", "dp_shard"}) == Ranks{0, 2, 4, 6, 8, 10});
  CHECK(mesh.ranks_of_group(0, {"dp_shard", "dp_replicate"}) == Ranks{0, 6, 2, 8, 4, 10});
  CHECK(mesh.ranks_of_group(5, {}) == Ranks{5});
  CHECK(mesh.group_size({"dp_replicate", "tp"}) == 4);
}

TEST_CASE("group_rank is a rank's place in its group, for every axis list") {
  const DeviceMesh mesh = hybrid();
  for (const AxisList& axes :
       std::vector<AxisList>{{}, {"tp"}, {"tp", "dp_shard"}, {"dp_shard", "tp", "dp_replicate"}}) {
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const Ranks group = mesh.ranks_of_group(rank, axes);
      CHECK(static_cast<int64_t>(group.size()) == mesh.group_size(axes));
      CHECK(group[static_cast<size_t>(mesh.group_rank(rank, axes))] == rank);
    }
  }
}

TEST_CASE("the groups of an axis list part the world") {
  const DeviceMesh mesh = hybrid();
  CHECK(mesh.groups({"dp_shard"}) == std::vector<Ranks>{{0, 2, 4}, {1, 3, 5}, {6, 8, 10}, {7, 9, 11}});
  for (const AxisList& axes : std::vector<AxisList>{{}, {"tp"}, {"dp_shard", "dp_replicate"}}) {
    std::multiset<int64_t> seen;
    for (const Ranks& group : mesh.groups(axes)) seen.insert(group.begin(), group.end());
    CHECK(seen.size() == 12);
    CHECK(std::set<int64_t>(seen.begin(), seen.end()).size() == 12);
  }
}

TEST_CASE("a view is its axes by another name") {
  DeviceMesh mesh = hybrid();
  mesh.add_view("dp", {"dp_replicate", "dp_shard"});
  mesh.add_view("all", {"dp", "tp"});
  CHECK(mesh.size("dp") == 6);
  CHECK(mesh.axis_rank(9, "dp") == 4);
  CHECK(mesh.ranks_of_group(9, {"dp"}) == mesh.ranks_of_group(9, {"dp_replicate", "dp_shard"}));
  CHECK(mesh.resolve({"all"}) == AxisList{"dp_replicate", "dp_shard", "tp"});
  CHECK_THROWS_WITH_AS(mesh.ranks_of_group(0, {"dp", "dp_shard"}), doctest::Contains("dp_shard comes twice"),
                       UserError);
  CHECK_THROWS_WITH_AS(mesh.add_view("tp", {"dp"}), doctest::Contains("named twice"), UserError);
}

TEST_CASE("a submesh numbers its ranks as the group does") {
  const DeviceMesh mesh = hybrid();
  const DeviceMesh inner = mesh.submesh({"dp_shard", "tp"});
  CHECK(to_string(inner) == "[dp_shard=3, tp=2]");
  const Ranks group = mesh.ranks_of_group(8, {"dp_shard", "tp"});
  for (int64_t r = 0; r < inner.world_size(); ++r)
    CHECK(inner.axis_rank(r, "dp_shard") == mesh.axis_rank(group[static_cast<size_t>(r)], "dp_shard"));
}

TEST_CASE("a mesh without axes is one rank") {
  CHECK(DeviceMesh().world_size() == 1);
  CHECK(DeviceMesh().ranks_of_group(0, {}) == Ranks{0});
  CHECK(to_string(DeviceMesh()) == "[]");
}

TEST_CASE("a bad axis is refused, with its name and what to do") {
  CHECK_THROWS_WITH_AS(init_device_mesh({{"dp", 0}}), "device mesh: axis dp has size 0\n  expected 1 or more",
                       UserError);
  CHECK_THROWS_WITH_AS(init_device_mesh({{"dp", 2}, {"dp", 2}}), doctest::Contains("axis dp is named twice"),
                       UserError);
  CHECK_THROWS_WITH_AS(init_device_mesh({{"", 2}}), doctest::Contains("is no axis name"), UserError);
  CHECK_THROWS_WITH_AS(init_device_mesh({{"a b", 2}}), doctest::Contains("is no axis name"), UserError);
  CHECK(init_device_mesh({{"a", 1 << 10}, {"b", 1 << 10}}).world_size() == 1 << 20);
  const auto too_many = doctest::Contains("more than 1048576 ranks at axis b");
  for (const int64_t size : {int64_t{2}, int64_t{1'000'000'000'000}, std::numeric_limits<int64_t>::max()})
    CHECK_THROWS_WITH_AS(init_device_mesh({{"a", 1 << 20}, {"b", size}}), too_many, UserError);
  CHECK_THROWS_WITH_AS(hybrid().size("dp_shrad"), doctest::Contains("did you mean dp_shard?"), UserError);
  CHECK_THROWS_WITH_AS(hybrid().coordinate(12), doctest::Contains("expected 0 to 11"), UserError);
}

}  // namespace sfsdp::device_mesh_test

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/mesh/placement.h"

#include <doctest/doctest.h>

#include <numeric>

#include "sfsdp/base/error.h"

namespace sfsdp {

namespace {

using Shape = std::vector<int64_t>;

// Row-major index in `shape` of element `i` (row-major) of `box`.
int64_t global_index(const Shape& shape, const Box& box, int64_t i) {
  int64_t index = 0;
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    index += (box.offset[d] + i % box.shape[d]) * stride;
    i /= box.shape[d];
    stride *= shape[d];
  }
  return index;
}

// Every rank takes its box of x; the boxes are then put back and each element must have come once per replica.
void check_gather_of_scatter(const Shape& shape, const DeviceMesh& mesh, const TensorPlacement& placement) {
  CAPTURE(to_string(placement, mesh));
  const Box whole{Shape(shape.size(), 0), shape};
  std::vector<int64_t> x(static_cast<size_t>(whole.numel()));
  std::iota(x.begin(), x.end(), 100);
  std::vector<int64_t> gathered(x.size(), -1);
  std::vector<int64_t> times(x.size(), 0);
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const Box box = local_box(shape, mesh, placement, rank);
    std::vector<int64_t> local;
    for (int64_t i = 0; i < box.numel(); ++i) local.push_back(x[static_cast<size_t>(global_index(shape, box, i))]);
    for (int64_t i = 0; i < box.numel(); ++i) {
      const auto at = static_cast<size_t>(global_index(shape, box, i));
      gathered[at] = local[static_cast<size_t>(i)];
      ++times[at];
    }
  }
  int64_t replicas = 1;
  for (size_t i = 0; i < placement.per_axis.size(); ++i)
    if (!std::holds_alternative<Shard>(placement.per_axis[i])) replicas *= mesh.axes()[i].size;
  CHECK(gathered == x);
  CHECK(times == std::vector<int64_t>(x.size(), replicas));
}

}  // namespace

TEST_CASE("gathering what was scattered gives the tensor back, on all small shapes and meshes") {
  const std::vector<Placement> choices = {Replicate{}, Shard{0}, Shard{1}, Partial{}};
  for (int64_t outer = 1; outer <= 3; ++outer) {
    for (int64_t inner = 1; inner <= 4; ++inner) {
      const DeviceMesh mesh = init_device_mesh({{"dp_shard", outer}, {"tp", inner}});
      for (int64_t rows = 0; rows <= 9; ++rows)
        for (int64_t columns : {0, 1, 3, 5})
          for (const Placement& first : choices)
            for (const Placement& second : choices)
              for (const AxisList& order : {AxisList{}, AxisList{"tp", "dp_shard"}})
                check_gather_of_scatter({rows, columns}, mesh, {{first, second}, order});
    }
  }
}

TEST_CASE("one axis cuts as torch.chunk does, empty shards at the end") {
  const DeviceMesh mesh = init_device_mesh({{"dp_shard", 4}});
  const TensorPlacement rows{{Shard{0}}, {}};
  CHECK(local_box({5, 3}, mesh, rows, 0) == Box{{0, 0}, {2, 3}});
  CHECK(local_box({5, 3}, mesh, rows, 2) == Box{{4, 0}, {1, 3}});
  CHECK(local_box({5, 3}, mesh, rows, 3) == Box{{5, 0}, {0, 3}});
  CHECK(local_box({5, 3}, mesh, {{Shard{1}}, {}}, 1) == Box{{0, 1}, {5, 1}});
}

TEST_CASE("FSDP over tensor parallelism: the tp chunk first, then the dp chunk of that chunk") {
  const DeviceMesh mesh = init_device_mesh({{"dp_shard", 2}, {"tp", 2}});
  const TensorPlacement fsdp_tp{{Shard{0}, Shard{0}}, {"tp", "dp_shard"}};
  // 7 rows: tp 0 has 0-3, tp 1 has 4-6; dp cuts 4 into 2 + 2, 3 into 2 + 1.
  CHECK(local_box({7}, mesh, fsdp_tp, 0) == Box{{0}, {2}});  // dp 0 tp 0
  CHECK(local_box({7}, mesh, fsdp_tp, 1) == Box{{4}, {2}});  // dp 0 tp 1
  CHECK(local_box({7}, mesh, fsdp_tp, 2) == Box{{2}, {2}});  // dp 1 tp 0
  CHECK(local_box({7}, mesh, fsdp_tp, 3) == Box{{6}, {1}});  // dp 1 tp 1
  CHECK(axes_of_dim(mesh, fsdp_tp, 0) == AxisList{"tp", "dp_shard"});
  // In mesh order the rows of dp 0 would be 0-3, of which tp 1 has 2-3.
  CHECK(local_box({7}, mesh, {{Shard{0}, Shard{0}}, {}}, 1) == Box{{2}, {2}});
}

TEST_CASE("replicated and partial axes leave the tensor whole") {
  const DeviceMesh mesh = init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}});
  CHECK(local_box({4, 2}, mesh, {{Partial{}, Replicate{}}, {}}, 3) == Box{{0, 0}, {4, 2}});
  CHECK(local_box({4, 2}, mesh, {{Replicate{}, Shard{0}}, {}}, 3) == Box{{2, 0}, {2, 2}});
  CHECK(local_box({}, mesh, {{Replicate{}, Partial{}}, {}}, 1).numel() == 1);
}

TEST_CASE("placements print in DTensor's words and read back") {
  CHECK(to_string(Placement(Shard{1})) == "Shard(1)");
  CHECK(to_string(Placement(Replicate{})) == "Replicate");
  CHECK(to_string(Placement(Partial{ReduceOp::Max})) == "Partial(max)");
  for (const Placement& placement :
       std::vector<Placement>{Shard{0}, Shard{3}, Replicate{}, Partial{}, Partial{ReduceOp::Avg}})
    CHECK(parse_placement(to_string(placement)) == placement);
  for (const char* bad : {"", "Shard", "Shard(-1)", "Shard(x)", "Partial(mul)", "replicate", "Partial("})
    CHECK_THROWS_AS(parse_placement(bad), UserError);
  const DeviceMesh mesh = init_device_mesh({{"dp_shard", 2}, {"tp", 2}});
  CHECK(to_string(TensorPlacement{{Shard{0}, Shard{0}}, {"tp", "dp_shard"}}, mesh) ==
        "[dp_shard: Shard(0), tp: Shard(0)] cut tp, dp_shard");
  CHECK(to_string(TensorPlacement{{Shard{0}, Replicate{}}, {}}, mesh) == "[dp_shard: Shard(0), tp: Replicate]");
}

TEST_CASE("a placement that does not fit mesh or tensor is refused") {
  const DeviceMesh mesh = init_device_mesh({{"dp_shard", 2}, {"tp", 2}});
  CHECK_THROWS_WITH_AS(local_box({4}, mesh, {{Shard{0}}, {}}, 0), doctest::Contains("1 placements for 2 axes"),
                       UserError);
  CHECK_THROWS_WITH_AS(local_box({4}, mesh, {{Shard{1}, Replicate{}}, {}}, 0),
                       doctest::Contains("Shard(1) over dp_shard of a tensor with 1 dimensions"), UserError);
  CHECK_THROWS_WITH_AS(local_box({4}, mesh, {{Shard{0}, Shard{0}}, {"cp"}}, 0), doctest::Contains("no axis cp"),
                       UserError);
}

}  // namespace sfsdp

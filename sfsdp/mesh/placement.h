// SPDX-License-Identifier: BSD-3-Clause
// Where a tensor lies: for each mesh axis one of Shard(dim), Replicate, Partial(op). DTensor's words.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sfsdp/mesh/device_mesh.h"

namespace sfsdp {

enum class ReduceOp : uint8_t { Sum, Avg, Max, Min };

struct Shard {  // cut along `dim` by chunk_of
  int64_t dim = 0;
  bool operator==(const Shard&) const = default;
};
struct Replicate {  // the same on every rank of the axis
  bool operator==(const Replicate&) const = default;
};
struct Partial {  // whole on every rank, still to be reduced over the axis
  ReduceOp op = ReduceOp::Sum;
  bool operator==(const Partial&) const = default;
};
using Placement = std::variant<Replicate, Shard, Partial>;

// "Shard(0)", "Replicate", "Partial(sum)".
std::string to_string(const Placement& placement);
std::ostream& operator<<(std::ostream& out, const Placement& placement);
Placement parse_placement(std::string_view text);  // throws UserError

// A tensor's placement on every axis of a mesh.
//
// When several axes cut the same dimension, the order of the cuts matters as soon as something does not divide. FSDP over
// tensor parallelism on mesh (dp, tp) takes the tp chunk first and the dp chunk of that chunk, although dp is the outer
// axis: cut_order = {"tp", "dp_shard"}, DTensor's _StridedShard. Axes not named cut afterwards, in mesh order.
struct TensorPlacement {
  std::vector<Placement> per_axis;  // one per axis of the mesh, outer to inner
  AxisList cut_order;
  bool operator==(const TensorPlacement&) const = default;
};

// A block of a tensor: elements offset[d] .. offset[d] + shape[d] of each dimension.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
  int64_t numel() const;
  bool operator==(const Box&) const = default;
};

// The part of a tensor of `global_shape` that `rank` holds; with Replicate and Partial only, all of it. An empty box has
// a 0 in its shape. Its offset is the end of what was cut.
//   throws: UserError if a placement is missing, shards a dimension the tensor lacks, or cut_order names a foreign axis
Box local_box(const std::vector<int64_t>& global_shape, const DeviceMesh& mesh, const TensorPlacement& placement,
              int64_t rank);

// The axes that cut `dim`, first cut first: what the IR prints as 4096/tp/dp_shard.
AxisList axes_of_dim(const DeviceMesh& mesh, const TensorPlacement& placement, int64_t dim);

// "[dp_shard: Shard(0), tp: Shard(0)] cut tp, dp_shard"; the cut order only where it is not mesh order.
std::string to_string(const TensorPlacement& placement, const DeviceMesh& mesh);

}  // namespace sfsdp

// SPDX-License-Identifier: BSD-3-Clause
// The ranks of a run laid out as a grid with named axes. Rank numbers are row-major: the last axis varies fastest, so
// that ranks next to each other on it are neighbours on a host. The trainer's order: pp, dp_replicate, dp_shard, cp, tp.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sfsdp {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  bool operator==(const MeshAxis&) const = default;
};

// Axis names, outer to inner. {"dp_replicate", "dp_shard"} names one group of all data-parallel ranks.
using AxisList = std::vector<std::string>;

// Arithmetic only: a mesh holds no rank of its own and no communicator.
//   throws: UserError for a bad axis (empty, doubled or ill-formed name, size < 1), more than 2^20 ranks, or a name it
//           does not have
class DeviceMesh {
 public:
  DeviceMesh() = default;  // no axes, one rank
  explicit DeviceMesh(std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  int64_t ndim() const { return static_cast<int64_t>(axes_.size()); }
  int64_t world_size() const;

  // A second name for axes taken together, in this order: add_view("dp", {"dp_replicate", "dp_shard"}). Every function
  // that takes an axis name takes a view's too.
  void add_view(const std::string& name, const AxisList& axes);
  bool has(std::string_view name) const;
  // The axes with views spelled out; an axis met twice is an error.
  AxisList resolve(const AxisList& names) const;

  int64_t size(std::string_view name) const;
  int64_t axis_index(std::string_view axis) const;  // place in axes(); not for views

  std::vector<int64_t> coordinate(int64_t rank) const;  // one entry per axis
  int64_t rank_of(const std::vector<int64_t>& coordinate) const;
  int64_t axis_rank(int64_t rank, std::string_view name) const;

  // Groups: ranks that differ in the named axes only. The order of names is the order of the group: the last varies
  // fastest, whatever its place in the mesh. No names: the rank alone.
  int64_t group_size(const AxisList& names) const;
  int64_t group_rank(int64_t rank, const AxisList& names) const;
  std::vector<int64_t> ranks_of_group(int64_t rank, const AxisList& names) const;
  // Every such group once, ordered by its lowest rank.
  std::vector<std::vector<int64_t>> groups(const AxisList& names) const;
  // The grid of one such group; rank r of it is ranks_of_group(rank, names)[r] here. Views are not taken over.
  DeviceMesh submesh(const AxisList& names) const;

  bool operator==(const DeviceMesh&) const = default;

 private:
  std::vector<MeshAxis> axes_;
  std::map<std::string, AxisList, std::less<>> views_;
};

// init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 4}}): eight ranks.
DeviceMesh init_device_mesh(std::vector<MeshAxis> axes);

// "[dp_replicate=2, dp_shard=4]", as in the head of a printed graph.
std::string to_string(const DeviceMesh& mesh);
std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh);

}  // namespace sfsdp

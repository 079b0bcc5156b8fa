// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/mesh/device_mesh.h"

#include <algorithm>
#include <cctype>
#include <ostream>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp {

namespace {

// As many as a launched run may have. Groups and the check of rendezvous keep some bytes for each rank.
constexpr int64_t kMaxRanks = 1 << 20;

bool is_identifier(std::string_view name) {
  const auto is_word = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
  return !name.empty() && !std::isdigit(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), is_word);
}

void check_new_name(const DeviceMesh& mesh, const std::string& name) {
  if (!is_identifier(name))
    throw UserError(concat("device mesh: \"", name,
                           "\" is no axis name\n  expected letters, digits and _, not a digit ",
                           "first; try dp_shard"));
  if (mesh.has(name))
    throw UserError(
        concat("device mesh ", mesh, ": axis ", name, " is named twice\n  give each axis a name of its own"));
}

std::vector<std::string> names_of(const std::vector<MeshAxis>& axes) {
  std::vector<std::string> names;
  names.reserve(axes.size());
  for (const MeshAxis& axis : axes) names.push_back(axis.name);
  return names;
}

[[noreturn]] void fail_unknown(const DeviceMesh& mesh, std::string_view name, const std::vector<std::string>& known) {
  if (known.empty()) throw UserError(concat("device mesh []: no axis ", name, "\n  it has no axes at all"));
  throw UserError(concat("device mesh ", mesh, ": no axis ", name, "\n  expected one of ", join(known, ", "),
                         did_you_mean(name, known)));
}

void check_rank(const DeviceMesh& mesh, int64_t rank) {
  if (rank < 0 || rank >= mesh.world_size())
    throw UserError(concat("device mesh ", mesh, ": rank ", rank, " does not exist\n  expected 0 to ",
                           mesh.world_size() - 1, "; do the axis sizes multiply to the number of processes?"));
}

}  // namespace

DeviceMesh::DeviceMesh(std::vector<MeshAxis> axes) {
  int64_t world = 1;
  for (MeshAxis& axis : axes) {
    check_new_name(*this, axis.name);
    if (axis.size < 1)
      throw UserError(concat("device mesh: axis ", axis.name, " has size ", axis.size, "\n  expected 1 or more"));
    if (axis.size > kMaxRanks / world)
      throw UserError(concat("device mesh: more than ", kMaxRanks, " ranks at axis ", axis.name, " of size ", axis.size,
                             "\n  expected sizes that multiply to the number of processes"));
    world *= axis.size;
    axes_.push_back(std::move(axis));
  }
}

int64_t DeviceMesh::world_size() const {
  int64_t world = 1;
  for (const MeshAxis& axis : axes_) world *= axis.size;
  return world;
}

void DeviceMesh::add_view(const std::string& name, const AxisList& axes) {
  check_new_name(*this, name);
  if (axes.empty())
    throw UserError(concat("device mesh ", *this, ": view ", name, " has no axes\n  expected at least one"));
  views_.emplace(name, resolve(axes));
}

bool DeviceMesh::has(std::string_view name) const {
  const auto has_name = [&](const MeshAxis& axis) { return axis.name == name; };
  return std::any_of(axes_.begin(), axes_.end(), has_name) || views_.contains(name);
}

AxisList DeviceMesh::resolve(const AxisList& names) const {
  AxisList axes;
  const auto add = [&](const std::string& axis) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end())
      throw UserError(concat("device mesh ", *this, ": axis ", axis, " comes twice in [", join(names, ", "),
                             "]\n  a group runs over each axis once"));
    axes.push_back(axis);
  };
  for (const std::string& name : names) {
    if (const auto view = views_.find(name); view != views_.end())
      std::for_each(view->second.begin(), view->second.end(), add);
    else
      add(axes_[static_cast<size_t>(axis_index(name))].name);
  }
  return axes;
}

int64_t DeviceMesh::size(std::string_view name) const { return group_size({std::string(name)}); }

int64_t DeviceMesh::axis_index(std::string_view axis) const {
  for (size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].name == axis) return static_cast<int64_t>(i);
  std::vector<std::string> known = names_of(axes_);
  for (const auto& [view, unused] : views_) known.push_back(view);
  fail_unknown(*this, axis, known);
}

std::vector<int64_t> DeviceMesh::coordinate(int64_t rank) const {
  check_rank(*this, rank);
  std::vector<int64_t> coordinate(axes_.size());
  for (size_t i = axes_.size(); i-- > 0;) {
    coordinate[i] = rank % axes_[i].size;
    rank /= axes_[i].size;
  }
  return coordinate;
}

int64_t DeviceMesh::rank_of(const std::vector<int64_t>& coordinate) const {
  SFSDP_CHECK(coordinate.size() == axes_.size(), coordinate.size(), " entries for mesh ", *this);
  int64_t rank = 0;
  for (size_t i = 0; i < axes_.size(); ++i) {
    SFSDP_CHECK(coordinate[i] >= 0 && coordinate[i] < axes_[i].size, axes_[i].name, " ", coordinate[i]);
    rank = rank * axes_[i].size + coordinate[i];
  }
  return rank;
}

int64_t DeviceMesh::axis_rank(int64_t rank, std::string_view name) const {
  return group_rank(rank, {std::string(name)});
}

int64_t DeviceMesh::group_size(const AxisList& names) const {
  int64_t size = 1;
  for (const std::string& axis : resolve(names)) size *= axes_[static_cast<size_t>(axis_index(axis))].size;
  return size;
}

int64_t DeviceMesh::group_rank(int64_t rank, const AxisList& names) const {
  const std::vector<int64_t> place = coordinate(rank);
  int64_t group_rank = 0;
  for (const std::string& axis : resolve(names)) {
    const auto index = static_cast<size_t>(axis_index(axis));
    group_rank = group_rank * axes_[index].size + place[index];
  }
  return group_rank;
}

std::vector<int64_t> DeviceMesh::ranks_of_group(int64_t rank, const AxisList& names) const {
  const DeviceMesh group = submesh(names);
  std::vector<int64_t> place = coordinate(rank);
  std::vector<int64_t> ranks;
  for (int64_t member = 0; member < group.world_size(); ++member) {
    const std::vector<int64_t> inside = group.coordinate(member);
    for (size_t i = 0; i < inside.size(); ++i) place[static_cast<size_t>(axis_index(group.axes()[i].name))] = inside[i];
    ranks.push_back(rank_of(place));
  }
  return ranks;
}

std::vector<std::vector<int64_t>> DeviceMesh::groups(const AxisList& names) const {
  std::vector<std::vector<int64_t>> groups;
  for (int64_t rank = 0; rank < world_size(); ++rank)
    if (group_rank(rank, names) == 0) groups.push_back(ranks_of_group(rank, names));
  return groups;  // its first member is also a group's lowest rank: all named coordinates are 0
}

DeviceMesh DeviceMesh::submesh(const AxisList& names) const {
  std::vector<MeshAxis> axes;
  for (const std::string& axis : resolve(names)) axes.push_back(axes_[static_cast<size_t>(axis_index(axis))]);
  return DeviceMesh(std::move(axes));
}

DeviceMesh init_device_mesh(std::vector<MeshAxis> axes) { return DeviceMesh(std::move(axes)); }

std::string to_string(const DeviceMesh& mesh) { return concat(mesh); }

std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh) {
  out << '[';
  for (const MeshAxis& axis : mesh.axes())
    out << (&axis == mesh.axes().data() ? "" : ", ") << axis.name << '=' << axis.size;
  return out << ']';
}

}  // namespace sfsdp

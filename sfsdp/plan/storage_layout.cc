// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/storage_layout.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/mesh/model_axis.h"
#include "sfsdp/plan/cuts.h"

namespace sfsdp::plan {

using ir::Graph, ir::Op, ir::Value;

namespace {

const Cut kWhole;

const Cut& cut_of(const std::vector<Cut>& cuts, size_t dim) { return dim < cuts.size() ? cuts[dim] : kWhole; }

Chunk part_of(const Cut& cut, int64_t size, const DeviceMesh& mesh, int64_t rank) {
  Chunk part{0, size};
  if (cut.lengths.empty()) {
    for (const std::string& axis : cut.axes) {
      const Chunk inner = chunk_of(part.length, mesh.size(axis), mesh.axis_rank(rank, axis));
      part = {part.offset + inner.offset, inner.length};
    }
    return part;
  }
  const auto own = cut.lengths.begin() + mesh.group_rank(rank, cut.axes);
  return {std::accumulate(cut.lengths.begin(), own, int64_t{0}), *own};
}

int64_t largest_part(const Cut& cut, int64_t size, const DeviceMesh& mesh) {
  if (!cut.lengths.empty()) return *std::ranges::max_element(cut.lengths);
  for (const std::string& axis : cut.axes) size = ceil_div(size, mesh.size(axis));
  return size;
}

int64_t largest_part(const std::vector<int64_t>& shape, const std::vector<Cut>& cuts, const DeviceMesh& mesh) {
  int64_t elements = 1;
  for (size_t d = 0; d < shape.size(); ++d)
    elements = ir::saturating_product(elements, largest_part(cut_of(cuts, d), shape[d], mesh));
  return elements;
}

// ---- from a graph

// Whose moment a state is, by name, and which count updates: an update carries a parameter with its moments.
struct Roles {
  std::unordered_map<const Value*, const Op*> param_of;
  std::set<const Value*> counters;
};
Roles roles_in(const Graph& graph) {
  std::unordered_map<const Op*, const Op*> updated;  // by update, the param
  for (const ir::Carry& carry : graph.carries)
    if (carry.current->producer()->is("param")) updated[carry.next->producer()] = carry.current->producer();
  Roles roles;
  for (const ir::Carry& carry : graph.carries) {
    const Op* maker = carry.next->producer();
    if (!carry.current->producer()->is("state")) continue;
    if (maker->is("step_count")) roles.counters.insert(carry.current);
    if (const auto found = updated.find(maker); found != updated.end()) roles.param_of[carry.current] = found->second;
  }
  return roles;
}

// The type names the axes that cut each dimension, and a rank's own sizes; rows= is the whole of dimension 0 where it is padded.
std::vector<int64_t> global_shape(const Op& op, const Op& param, const DeviceMesh& mesh) {
  std::vector<int64_t> shape;
  for (const ir::Dim& dim : op.result()->type().dims) shape.push_back(dim.size * mesh.group_size(dim.split));
  if (!shape.empty() && param.has_attr("vocabulary")) shape[0] = param.attr<int64_t>("vocabulary");
  if (shape.empty() || !param.has_attr("rows") || param.has_attr("vocabulary")) return shape;
  shape[0] = param.attr<int64_t>("rows");  // of what model axes have left
  for (const std::string& axis : op.result()->type().dims[0].split)
    if (is_tensor_axis(axis) || axis == param.attr_or<std::string>("box", "")) shape[0] *= mesh.size(axis);
  return shape;
}

std::vector<FlatMember> members_in(const Op& param, const GlobalShapes& shapes) {
  std::vector<FlatMember> members;
  const auto& names = param.attr<std::vector<std::string>>("members");
  const auto& numels = param.attr<std::vector<int64_t>>("numels");
  const auto& offsets = param.attr<std::vector<int64_t>>("offsets");
  for (size_t i = 0; i < names.size(); ++i) {
    const auto shape = shapes.find(names[i]);
    members.push_back({.name = names[i],
                       .shape = shape == shapes.end() ? std::vector<int64_t>{numels[i]} : shape->second,
                       .offset = offsets[i]});
    members.back().cuts = cuts_of_member(param, i);
  }
  std::ranges::stable_sort(members, {}, &FlatMember::offset);
  return members;
}

// ---- checks

std::string check_cuts(const std::string& name, const std::vector<int64_t>& shape, const std::vector<Cut>& cuts,
                       const DeviceMesh& mesh, std::set<std::string>& axes) {
  if (cuts.size() > shape.size())
    return concat(name, " has cuts of ", cuts.size(), " dimensions\n  expected at most ", shape.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    const Cut& cut = cut_of(cuts, d);
    if (shape[d] < 0) return concat(name, " has dimension ", d, " of size ", shape[d], "\n  expected 0 or more");
    for (const std::string& axis : cut.axes)
      if (!mesh.has(axis) || !axes.insert(axis).second)
        return concat(name, " is cut over ", axis, "\n  expected an axis of the mesh, ", to_string(mesh),
                      ", each once");
    if (cut.lengths.empty()) continue;
    const int64_t sum = std::accumulate(cut.lengths.begin(), cut.lengths.end(), int64_t{0});
    if (std::ssize(cut.lengths) != mesh.group_size(cut.axes) || sum != shape[d] ||
        std::ranges::any_of(cut.lengths, [](int64_t n) { return n < 0; }))
      return concat(name, " has ", cut.lengths.size(), " parts of together ", sum, " in dimension ", d, "\n  expected ",
                    mesh.group_size(cut.axes), " of together ", shape[d], ", none below 0");
  }
  return "";
}

std::string check_members(const StateEntry& entry, const DeviceMesh& mesh, const std::set<std::string>& own_axes) {
  if (entry.members.empty()) return "";
  if (entry.kind != StateKind::Parameter || entry.shape.size() != 1)
    return concat(entry.name, " has members\n  expected them of flat buffers of parameters alone");
  int64_t end = 0;
  for (const FlatMember& member : entry.members) {
    std::set<std::string> axes = own_axes;
    if (auto wrong = check_cuts(member.name, member.shape, member.cuts, mesh, axes); !wrong.empty()) return wrong;
    if (member.offset < end)
      return concat(member.name, " begins at element ", member.offset, " of ", entry.name, "\n  expected at least ",
                    end, ", where the one before it ends");
    const int64_t room = entry.shape[0] - member.offset;
    const int64_t needed = largest_part(member.shape, member.cuts, mesh);
    if (needed > room)
      return concat(member.name, " has ", needed, " elements at ", member.offset, " of ", entry.name,
                    "\n  expected at most ", room, ", as far as the buffer goes");
    end = member.offset + needed;
  }
  return "";
}

std::string check_entry(const StorageLayout& layout, const StateEntry& entry, const DeviceMesh& mesh) {
  std::set<std::string> axes;
  if (auto wrong = check_cuts(entry.name, entry.shape, entry.cuts, mesh, axes); !wrong.empty()) return wrong;
  if (auto wrong = check_members(entry, mesh, axes); !wrong.empty()) return wrong;
  if (entry.region != Region::State && entry.region != Region::Window)
    return concat(entry.name, " lies in region ", to_string(entry.region), "\n  expected state or window");
  const int64_t needed = ir::saturating_product(largest_part(layout, entry), ir::size_in_bytes(entry.dtype));
  if (entry.offset < 0 || entry.bytes < std::max<int64_t>(needed, 1) || needed > ir::kMaxBytes ||
      entry.bytes > ir::kMaxBytes - entry.offset)
    return concat(entry.name, " has ", entry.bytes, " bytes at ", entry.offset, "\n  expected room for ", needed,
                  " within a region");
  const StateEntry* whose = entry.of.empty() ? nullptr : find(layout, entry.of);
  if (entry.kind != StateKind::Moment) {
    if (!entry.of.empty()) return concat(entry.name, " is no moment\n  expected no of=", entry.of);
  } else if (!whose || whose->kind != StateKind::Parameter || !entry.name.starts_with(entry.of) ||
             whose->shape != entry.shape) {
    return concat(entry.name, " is a moment of ", entry.of.empty() ? "nothing" : entry.of,
                  "\n  expected of= to name a parameter of the same shape that the name begins with");
  }
  return "";
}

}  // namespace

std::string_view to_string(StateKind kind) {
  constexpr std::array<std::string_view, 4> kNames = {"parameter", "moment", "counter", "buffer"};
  return kNames.at(static_cast<size_t>(kind));
}

const StateEntry* find(const StorageLayout& layout, std::string_view name) {
  const auto found = std::ranges::find(layout.entries, name, &StateEntry::name);
  return found == layout.entries.end() ? nullptr : &*found;
}

std::vector<FlatMember> members_of(const StorageLayout& layout, const StateEntry& entry) {
  const StateEntry* whose = entry.of.empty() ? nullptr : find(layout, entry.of);
  if (!whose) return entry.members;
  std::vector<FlatMember> members = whose->members;
  for (FlatMember& member : members) member.name += entry.name.substr(entry.of.size());
  return members;
}

StorageKey key_of(const StateEntry& entry) {
  StorageKey key{.axes = {}, .dtype = entry.dtype};
  const auto add = [&](const std::vector<Cut>& cuts) {
    for (const Cut& cut : cuts)
      for (const std::string& axis : cut.axes)
        if (std::ranges::find(key.axes, axis) == key.axes.end()) key.axes.push_back(axis);
  };
  for (const FlatMember& member : entry.members) add(member.cuts);
  add(entry.cuts);
  return key;
}

std::string to_string(const StorageKey& key) {
  return concat(key.axes.empty() ? "none" : join(key.axes, ","), '/', ir::to_string(key.dtype));
}

Box box_of(const std::vector<int64_t>& shape, const std::vector<Cut>& cuts, const DeviceMesh& mesh, int64_t rank) {
  Box box{.dims = {}, .flat = {0, 1}};
  for (size_t d = 0; d < shape.size(); ++d) {
    box.dims.push_back(part_of(cut_of(cuts, d), shape[d], mesh, rank));
    box.flat.length *= box.dims.back().length;
  }
  return box;
}

Box box_of(const StorageLayout& layout, const StateEntry& entry, int64_t rank) {
  return box_of(entry.shape, entry.cuts, DeviceMesh(layout.mesh), rank);
}

Box box_of(const StorageLayout& layout, const StateEntry& buffer, const FlatMember& member, int64_t rank) {
  const DeviceMesh mesh(layout.mesh);
  Box box = box_of(member.shape, member.cuts, mesh, rank);
  const Chunk own = part_of(cut_of(buffer.cuts, 0), buffer.shape.at(0), mesh, rank);
  const int64_t all = box.flat.length, begin = std::clamp(own.offset - member.offset, int64_t{0}, all);
  box.flat = {begin, std::clamp(own.offset + own.length - member.offset, int64_t{0}, all) - begin};
  return box;
}

int64_t largest_part(const StorageLayout& layout, const StateEntry& entry) {
  return largest_part(entry.shape, entry.cuts, DeviceMesh(layout.mesh));
}

int64_t end_of(const StorageLayout& layout, Region region) {
  int64_t end = 0;
  for (const StateEntry& entry : layout.entries)
    if (entry.region == region) end = std::max(end, entry.offset + entry.bytes);
  return end;
}

GlobalShapes global_shapes(const Graph& graph) {
  GlobalShapes shapes;
  for (const auto& op : graph.ops())
    if (op->is("param")) shapes[op->attr<std::string>("name")] = global_shape(*op, *op, DeviceMesh(graph.mesh));
  return shapes;
}

void append_state(StorageLayout& layout, const Graph& graph, const MemoryPlan& plan, const GlobalShapes& shapes) {
  SFSDP_CHECK(layout.entries.empty() || layout.mesh == graph.mesh, "the layout is of mesh ",
              to_string(DeviceMesh(layout.mesh)), ", the graph of ", to_string(DeviceMesh(graph.mesh)));
  layout.mesh = graph.mesh;
  std::set<std::string> known;
  for (const StateEntry& entry : layout.entries) known.insert(entry.name);
  const Roles roles = roles_in(graph);
  for (const Buffer& buffer : plan.state) {
    const Op& op = *buffer.value->producer();
    const auto found = roles.param_of.find(buffer.value);
    const Op& param = found == roles.param_of.end() ? op : *found->second;
    StateEntry entry{.name = op.attr<std::string>("name"),
                     .dtype = buffer.value->type().dtype,
                     .shape = global_shape(op, param, DeviceMesh(graph.mesh)),
                     .region = buffer.region,
                     .offset = buffer.offset,
                     .bytes = buffer.bytes};
    if (!known.insert(entry.name).second) continue;
    const auto& dims = buffer.value->type().dims;
    if (std::ranges::any_of(dims, [](const ir::Dim& dim) { return !dim.split.empty(); }))
      for (const ir::Dim& dim : dims) entry.cuts.push_back({.axes = dim.split});
    if (&param != &op) {
      entry.kind = StateKind::Moment;
      entry.of = param.attr<std::string>("name");
    } else if (!op.is("param")) {
      entry.kind = roles.counters.contains(buffer.value) ? StateKind::Counter : StateKind::Buffer;
    } else if (op.has_attr("members")) {
      entry.members = members_in(op, shapes);
    }
    layout.entries.push_back(std::move(entry));
  }
}

std::string check_layout(const StorageLayout& layout) {
  const DeviceMesh mesh(layout.mesh);
  std::set<std::string> names;
  std::vector<const StateEntry*> by_address;
  for (const StateEntry& entry : layout.entries) {
    if (!names.insert(entry.name).second) return concat(entry.name, " is there twice\n  expected each entry once");
    if (auto wrong = check_entry(layout, entry, mesh); !wrong.empty()) return wrong;
    by_address.push_back(&entry);
  }
  std::ranges::sort(by_address, {}, [](const StateEntry* e) { return std::pair(e->region, e->offset); });
  for (size_t i = 1; i < by_address.size(); ++i) {
    const StateEntry &before = *by_address[i - 1], &entry = *by_address[i];
    if (before.region == entry.region && before.offset + before.bytes > entry.offset)
      return concat(entry.name, " lies over ", before.name, " at ", to_string(entry.region), " +", entry.offset,
                    "\n  expected each entry at a place of its own");
  }
  return "";
}

}  // namespace sfsdp::plan

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/redistribute.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/sequence_order.h"
#include "sfsdp/ir/view_geometry.h"
#include "sfsdp/parallel/localise.h"
#include "sfsdp/parallel/placement_kinds.h"

namespace sfsdp::parallel {
namespace {

using ir::Dim, ir::Placement, ir::Type, ir::Value;
using Shape = std::vector<int64_t>;
using Dims = std::vector<Dim>;

// The dimensions in the order in which they lie in memory, with or without gaps; nullopt: as they are written, or repeated.
std::optional<Shape> memory_order(const Type& type) {
  if (type.strides.empty() || std::ranges::find(type.strides, 0) != type.strides.end()) return std::nullopt;
  Shape order(type.dims.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](int64_t d) { return type.strides[static_cast<size_t>(d)]; });
  return std::ranges::is_sorted(order) ? std::nullopt : std::optional(order);
}

// Where each of 0 to n - 1 stands in the order.
Shape inverse(const Shape& order) {
  Shape places(order.size());
  for (size_t i = 0; i < places.size(); ++i) places[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return places;
}

Placement moved(const Placement& placement, const Shape& order) {
  if (placement.kind != Placement::Kind::Shard) return placement;
  return Placement::shard(std::ranges::find(order, placement.dim) - order.begin(), placement.blocks);
}

// Where another axis places rows that only memory says: the dimension that they are in, by that of before.
template <class NewDim>
void for_rows(Type& type, const NewDim& new_dim) {
  for (ir::AxisPlacement& p : type.placements)
    if (is_rows(p.placement)) p.placement.dim = new_dim(p.placement.dim);
}

Value* permuted(const ir::Builder::Place& place, Value* value, const Shape& order, const std::string& name,
                const Placement& placement, Placements& placements) {
  const Shape strides = ir::strides_of(value->type());
  Shape steps;
  Type type = value->type();
  type.dims.clear();
  type.strides.clear();
  for (const int64_t dim : order) {
    type.dims.push_back(value->type().dims[static_cast<size_t>(dim)]);
    steps.push_back(strides[static_cast<size_t>(dim)]);
  }
  if (!ir::same_places(type, steps)) type.strides = steps;
  for_rows(type, [&](int64_t dim) { return std::ranges::find(order, dim) - order.begin(); });
  Value* made = place.value("aten.permute", {value}, type, name, {{"dims", order}});
  if (placement != kWhole) placements[made] = placement;
  return made;
}

// A dimension as `outer` × the rest, how other axes cut it with it: within the outer ranges, or in all of them.
//   value, axis: for the error where a block of another axis ends within a range
Dims taken_apart(const Dim& dim, int64_t outer, const Value& value, const MeshAxis& axis) {
  Dims dims = {{.size = outer, .split = {}}, {.size = dim.size / outer, .split = {}}};
  for (size_t i = 0; i < dim.split.size(); ++i) {
    const int64_t blocks = dim.blocks_of(i);
    const bool within = blocks % outer == 0 && blocks > 1;
    if (!within && outer % blocks != 0)
      throw UserError(concat(verb_of(axis.name), ir::opcode_at(*value.producer()), " makes %", value.name(), ", ",
                             value.type(), ", whose ", blocks, " blocks over ", dim.split[i], " cannot lie in ", outer,
                             " ranges over ", axis.name, "\n  expected a number of samples that ", axis.name, " = ",
                             axis.size, " divides, or no sequence parallelism"));
    dims[within ? 1 : 0].add_axis(dim.split[i], within ? blocks / outer : blocks);
  }
  return dims;
}

const char* suffix_of(const Placement& from, const Placement& to) {
  return to != kWhole ? ".part" : from == kSum ? ".sum" : ".whole";
}

Value* dense(const ir::Builder::Place& place, Value* value, const std::string& name, const Placement& placement,
             Placements& placements) {
  if (value->type().strides.empty()) return value;
  Type type = value->type();
  type.strides.clear();
  Value* made = place.value("aten.clone", {value}, type, name + ".dense", {{"memory_format", int64_t{0}}});
  if (placement != kWhole) placements[made] = placement;
  return made;
}

class Redistributor {
 public:
  Redistributor(const ir::Builder::Place& place, Value* value, const MeshAxis& axis, Placements& placements)
      : place_(place), value_(value), dims_(value->type().dims), axis_(axis), placements_(placements) {}

  // From the order of the sequence to rank after rank, head and tail; `back`: from there to that of the sequence.
  Value* reorder(int64_t dim, const Placement& placement, bool back) {
    std::vector<int64_t> order = ir::chunk_order(axis_.size);
    if (back) order = inverse(order);
    Value* flat = dense(value_, placement);
    return made(place_.value("reorder", {flat}, flat->type(), value_->name() + (back ? ".natural" : ".balanced"),
                             {{"dim", dim}, {"order", order}}),
                placement);
  }

  Value* gather(int64_t dim) {
    const Placement at_dim = Placement::shard(dim);
    if (leads(dim)) return send("all_gather", dense(value_, at_dim), dims_, value_->name() + ".whole", kWhole, dim);
    Value* own = permute(apart(dense(value_, at_dim), dim, axis_.size, at_dim, ".parts"), to_front(dim),
                         Placement::shard(0), ".front");
    Value* all = send("all_gather", own, own->type().dims, value_->name() + ".all", kWhole);
    return joined(dense(permute(all, to_back(dim), kWhole, ".back"), kWhole), dim, dims_, kWhole, ".whole");
  }

  Value* scatter_sum(int64_t dim) {
    const Placement at_dim = Placement::shard(dim);
    if (leads(dim)) return send("reduce_scatter", dense(value_, kSum), dims_, value_->name() + ".part", at_dim, dim);
    Value* front = permute(apart(dense(value_, kSum), dim, axis_.size, kSum, ".parts"), to_front(dim), kSum, ".front");
    Value* parts = dense(front, kSum);
    Value* own = send("reduce_scatter", parts, parts->type().dims, value_->name() + ".own", Placement::shard(0));
    return joined(permute(own, to_back(dim), at_dim, ".back"), dim, dims_, at_dim, ".part");
  }

  Value* sum() {
    return place_.value("all_reduce", {dense(value_, kSum)}, type_of(value_, dims_), value_->name() + ".sum",
                        {{"axis", axis_.name}});
  }

  Value* own_part(int64_t dim) {
    return send("own_part", dense(value_, kWhole), dims_, value_->name() + ".part", Placement::shard(dim), dim);
  }

  // What is cut in `join` is cut in `split` instead.
  Value* exchange(int64_t join, int64_t split) {
    Value* flat = dense(value_, Placement::shard(join));
    return made(place_.value("all_to_all", {flat}, type_of(value_, dims_), value_->name() + ".moved",
                             {{"axis", axis_.name}, {"split", split}, {"join", join}}),
                Placement::shard(split));
  }

  Value* pass_on(int64_t shift, const std::string& name, const Placement& placement) {
    return made(place_.value("permute", {dense(value_, placement)}, type_of(value_, dims_), name,
                             {{"axis", axis_.name}, {"shift", shift}}),
                placement);
  }

  // With the blocks of the dimension as a dimension of their own before it, and without them again.
  Value* with_blocks(const Placement& cut, const Placement& placement) {
    return apart(dense(value_, placement), cut.dim, cut.blocks, in_block(cut, placement), ".blocks");
  }
  Value* without_blocks(const Placement& cut, const Dims& dims, const Placement& placement, const char* suffix) {
    return joined(dense(value_, in_block(cut, placement)), cut.dim, dims, placement, suffix);
  }
  // How what lies so lies once the blocks of `cut` are a dimension.
  static Placement in_block(const Placement& cut, const Placement& placement) {
    if (placement.kind != Placement::Kind::Shard || placement.dim < cut.dim) return placement;
    return Placement::shard(placement.dim + 1, placement.dim == cut.dim ? 1 : placement.blocks);
  }

 private:
  // Whether the parts of the dimension lie one after the other, as what stands before it has one index.
  bool leads(int64_t dim) const {
    return std::all_of(dims_.begin(), dims_.begin() + dim, [](const Dim& d) { return d.size == 1; });
  }

  // ---- the dimension as ranks × its part

  Dims split(int64_t dim, int64_t outer) const {
    Dims dims = dims_;
    const Dims apart = taken_apart(dims_[static_cast<size_t>(dim)], outer, *value_, axis_);
    dims[static_cast<size_t>(dim)] = apart[1];
    dims.insert(dims.begin() + dim, apart[0]);
    return dims;
  }
  Shape to_front(int64_t dim) const {
    Shape order(dims_.size() + 1);
    std::iota(order.begin(), order.end(), 0);
    order.erase(order.begin() + dim);
    order.insert(order.begin(), dim);
    return order;
  }
  Shape to_back(int64_t dim) const {
    Shape order(dims_.size() + 1);
    std::iota(order.begin(), order.end(), 0);
    order.erase(order.begin());
    order.insert(order.begin() + dim, 0);
    return order;
  }

  // ---- ops

  // As other axes place the value.
  static Type type_of(const Value* value, const Dims& dims) {
    Type type = value->type();
    type.dims = dims;
    type.strides.clear();
    return type;
  }
  Value* made(Value* value, const Placement& placement) {
    if (placement != kWhole) placements_[value] = placement;
    return value;
  }
  Value* send(const char* opcode, Value* value, const Dims& dims, const std::string& name, const Placement& placement,
              int64_t dim = 0) {
    return made(place_.value(opcode, {value}, type_of(value, dims), name, {{"axis", axis_.name}, {"dim", dim}}),
                placement);
  }
  Value* dense(Value* value, const Placement& placement) {
    return parallel::dense(place_, value, value_->name(), placement, placements_);
  }
  // The dimension as `outer` × the rest; and the two as one again.
  Value* apart(Value* value, int64_t dim, int64_t outer, const Placement& placement, const char* suffix) {
    Type type = type_of(value, split(dim, outer));
    for_rows(type, [&](int64_t d) { return d < dim ? d : d + 1; });
    return view(value, type, placement, suffix);
  }
  Value* joined(Value* value, int64_t dim, const Dims& dims, const Placement& placement, const char* suffix) {
    Type type = type_of(value, dims);
    for_rows(type, [&](int64_t d) { return d <= dim ? d : d - 1; });
    return view(value, type, placement, suffix);
  }
  Value* view(Value* value, const Type& type, const Placement& placement, const char* suffix) {
    return made(place_.value("aten.view", {value}, type, value_->name() + suffix, {{"size", type.shape()}}), placement);
  }
  Value* permute(Value* value, const Shape& order, const Placement& placement, const char* suffix) {
    return permuted(place_, value, order, value_->name() + suffix, placement, placements_);
  }

  const ir::Builder::Place& place_;
  Value* const value_;
  const Dims dims_;  // of the whole
  const MeshAxis& axis_;
  Placements& placements_;
};

}  // namespace

Value* redistribute(const ir::Builder::Place& place, Value* value, const MeshAxis& axis, const Placement& from,
                    const Placement& to, Placements& placements, HeadAndTail balanced) {
  if (const auto order = memory_order(value->type())) {  // readers expect it to lie in memory as it did
    Value* flat = permuted(place, value, *order, value->name() + ".flat", moved(from, *order), placements);
    Value* made = redistribute(place, flat, axis, moved(from, *order), moved(to, *order), placements, balanced);
    return permuted(place, made, inverse(*order), value->name() + suffix_of(from, to), to, placements);
  }
  const bool is_cut = from.kind == Placement::Kind::Shard, is_to_be_cut = to.kind == Placement::Kind::Shard;
  SFSDP_CHECK(!is_cut || !is_to_be_cut || from.dim != to.dim, "%", value->name());
  Redistributor make(place, value, axis, placements);
  if (const Placement& cut = is_cut && from.blocks > 1 ? from : is_to_be_cut ? to : from; cut.blocks > 1) {
    const Placement before = Redistributor::in_block(cut, from), after = Redistributor::in_block(cut, to);
    Value* made = redistribute(place, make.with_blocks(cut, from), axis, before, after, placements, balanced);
    return Redistributor(place, made, axis, placements)
        .without_blocks(cut, value->type().dims, to, suffix_of(from, to));
  }
  if (to == kWhole && from == kSum) return make.sum();
  if (is_to_be_cut && balanced.after) value = make.reorder(to.dim, from, false);
  Redistributor send(place, value, axis, placements);
  if (is_to_be_cut && !is_cut) return from == kSum ? send.scatter_sum(to.dim) : send.own_part(to.dim);
  Value* joined = is_to_be_cut ? send.exchange(from.dim, to.dim) : send.gather(from.dim);
  return balanced.before ? Redistributor(place, joined, axis, placements).reorder(from.dim, to, true) : joined;
}

Value* in_memory_order(const ir::Builder::Place& place, Value* value, Placement& placement, Placements& placements) {
  if (const auto order = memory_order(value->type())) {
    placement = moved(placement, *order);
    value = permuted(place, value, *order, value->name() + ".flat", placement, placements);
  }
  return dense(place, value, value->name(), placement, placements);
}

Value* out_of_memory_order(const ir::Builder::Place& place, Value* flat, const Value& like, const Placement& placement,
                           const std::string& name, Placements& placements) {
  const auto order = memory_order(like.type());
  return order ? permuted(place, flat, inverse(*order), name, placement, placements) : flat;
}

Value* pass_on(const ir::Builder::Place& place, Value* value, const MeshAxis& axis, const Placement& placement,
               int64_t shift, const std::string& name, Placements& placements) {
  Placement flat = placement;
  Value* sent = in_memory_order(place, value, flat, placements);
  Value* got = Redistributor(place, sent, axis, placements).pass_on(shift, name, flat);
  return out_of_memory_order(place, got, *value, placement, name, placements);
}

namespace {

// A parameter, or one with its blocks joined (separate_blocks.h).
bool is_param(const Value& value) {
  const ir::Op& op = *value.producer();
  return op.is("param") || (op.is("aten.view") && op.operands[0]->producer()->is("param"));
}

}  // namespace

// What is cut in other blocks of the same dimension is whole in between; so is what another axis cuts in one of the dimensions, as
// its parts would be joined out of order.
bool moves_by_exchange(const Value& value, const Placement& from, const Placement& to) {
  const auto is_free = [&](int64_t dim) { return value.type().dims[static_cast<size_t>(dim)].split.empty(); };
  return is_cut(from) && is_cut(to) && from.dim != to.dim && is_free(from.dim) && is_free(to.dim);
}

double redistribution_cost(const Value& value, const Placement& from, const Placement& to, int64_t ranks) {
  constexpr double kCopy = 1e-3, kUndone = 1e6;
  if (from == to) return 0;
  if (to == kSum)
    return is_rows(from) ? kCopy * static_cast<double>(value.type().bytes()) : std::numeric_limits<double>::infinity();
  if (is_rows(to) && from != kWhole)
    return redistribution_cost(value, from, kWhole, ranks) + redistribution_cost(value, kWhole, to, ranks);
  // Parts that do not lie together are copied, and rows that only memory says are then not in front.
  const auto is_copied = [&](const Placement& cut) {
    const auto& dims = value.type().dims;
    return is_cut(cut) && std::any_of(dims.begin(), dims.begin() + cut.dim, [](const Dim& d) { return d.size != 1; });
  };
  const bool holds_rows =
      std::ranges::any_of(value.type().placements, [](const auto& p) { return is_rows(p.placement); });
  const bool undoes =
      (is_cut(from) && is_param(value)) || (holds_rows && (is_copied(from) || (from == kSum && is_copied(to))));
  const double bytes = static_cast<double>(value.type().bytes()) * (undoes ? kUndone : 1);
  const auto copied = [&](const Placement& cut) { return is_copied(cut) ? kCopy * bytes : 0; };
  if (to == kWhole) return is_cut(from) ? bytes + copied(from) : 2 * bytes;
  if (from == kWhole) return kCopy * bytes;
  if (from == kSum || is_rows(from)) return bytes + copied(to);
  return ranks > 0 && moves_by_exchange(value, from, to) ? bytes / static_cast<double>(ranks) : (1 + kCopy) * bytes;
}

}  // namespace sfsdp::parallel

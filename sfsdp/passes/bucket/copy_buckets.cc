// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/bucket/copy_buckets.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/passes/analysis/param_reads.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Type, ir::Value;

constexpr int64_t kAlignment = 16;  // bytes, of each part in the buffer: the widest load of a GPU

// Collectives that become one, in order.
struct Group {
  std::string unit;
  std::vector<Op*> members;
};

class Merger {
 public:
  Merger(Graph& graph, std::string kind, PassContext& ctx) : graph_(graph), kind_(std::move(kind)), ctx_(ctx) {}

  bool run() {
    const std::vector<Group> groups = find_groups();
    for (const Group& group : groups)
      for (const Op* member : group.members) end_of_[member] = index_.position(group.members.back());
    for (const Group& group : groups) kind_ == "all_gather" ? gather(group) : reduce(group);
    build_.apply();
    ir::Moves moves(graph_);
    for (const auto& op : graph_.ops())
      if (const auto late = late_.find(op.get()); late != late_.end()) {
        Op* const moved = op.get();
        moves.after(late->second.after, {&moved, 1});
      }
    for (const auto& [place, ops] : before_) moves.before(place, ops);
    moves.apply();
    return !groups.empty();
  }

  // Several of one unit and region, between the same ranks and of one dtype, in the graph's order.
  std::vector<Group> find_groups() {
    std::vector<Group> groups;
    std::map<std::string, size_t> by_key;
    for (const auto& op : graph_.ops()) {
      if (!op->is(kind_)) continue;
      const Op* param = param_of_collective(*op);
      if (!param) continue;
      if (!param->has_attr("unit"))
        throw UserError(concat("pass copy_buckets: parameter ", param->result()->name(),
                               " has no unit\n  expected unit=; run pass wrap first"));
      const auto& unit = param->attr<std::string>("unit");
      std::ostringstream key;
      key << unit << '|' << ir::to_string(op->section) << '|' << ir::to_string(op->result()->type().dtype);
      for (const auto& [name, value] : op->attrs) key << '|' << name << '=' << value;
      const auto [place, fresh] = by_key.emplace(key.str(), groups.size());
      if (fresh) groups.push_back({unit, {}});
      groups[place->second].members.push_back(op.get());
    }
    std::erase_if(groups, [](const Group& group) { return group.members.size() < 2; });
    return groups;
  }

 private:
  // The parameter whose shards are gathered, or whose gradient is reduced; nullptr: another collective.
  const Op* param_of_collective(const Op& op) const {
    if (kind_ == "all_gather") return op.operands.size() == 1 ? param_of(op.result()) : nullptr;
    return param_of_gradient(params_, index_, op.result());
  }

  // The attributes of an op that runs as often as `like`.
  static ir::Attrs as_often_as(const Op& like, ir::Attrs attrs) {
    if (ir::is_once(like)) attrs["once"] = true;
    return attrs;
  }

  // pack -> the collective, at `place`. Offsets are those of the parts in a rank's share of the whole buffer.
  Value* collect(const Group& group, const ir::Builder::Place& place, const std::string& suffix,
                 std::vector<int64_t>& offsets) {
    const Op& like = *group.members[0];
    const ir::DType dtype = like.result()->type().dtype;
    const bool gathers = kind_ == "all_gather";
    const int64_t alignment = std::max<int64_t>(kAlignment / ir::size_in_bytes(dtype), 1);
    int64_t end = 0;
    std::vector<Value*> parts;
    for (const Op* member : group.members) {
      parts.push_back(member->operands[0]);
      offsets.push_back(end);
      end = round_up(end + (gathers ? member->operands[0] : member->result())->type().numel(), alignment);
      ctx_.metrics.add("bytes_copied", member->operands[0]->type().bytes());
      if (gathers) ctx_.metrics.add("bytes_copied", member->result()->type().bytes());
    }
    const int64_t sent = parts[0]->type().numel(), received = like.result()->type().numel();
    const int64_t ranks = sent == received ? 1 : gathers ? received / sent : sent / received;
    ir::Attrs attrs = as_often_as(like, {{"offsets", offsets}});
    if (!gathers && ranks > 1) attrs["ranks"] = ranks;
    Op* pack = place.list("pack", parts, Type::tensor(dtype, {gathers ? end : end * ranks}),
                          group.unit + suffix + ".packed", std::move(attrs));
    Value* made = place.value(kind_, {pack->result()}, Type::tensor(dtype, {gathers ? end * ranks : end}),
                              group.unit + suffix, like.attrs);
    ctx_.metrics.add("merged", std::ssize(group.members));
    ctx_.metrics.add("buckets", 1);
    build_.erase(group.members);
    return made;
  }

  // One gather where the first of them stands; each parameter copied out where its own stood.
  void gather(const Group& group) {
    Op* const place = group.members[0];
    std::vector<int64_t> offsets;
    Value* whole = collect(group, build_.before(place).at(group.unit), ".full", offsets);
    const Op* pack = whole->producer()->operands[0]->producer();
    for (size_t i = 0; i < group.members.size(); ++i) {
      Op* member = group.members[i];
      std::vector<Op*> casts;  // of the shard, that stand after the pack; others may read them too
      for (Op* op = member->operands[0]->producer(); index_.position(op) > index_.position(place);
           op = op->operands[0]->producer())
        if (early_.insert(op).second) casts.insert(casts.begin(), op);
      before_[pack].insert(before_[pack].end(), casts.begin(), casts.end());
      const Type type = member->result()->type();
      const int64_t ranks = type.numel() / member->operands[0]->type().numel();
      build_.take_place(member->result(),
                        build_.before(member).value("unpack", {whole}, type, member->result()->name(),
                                                    as_often_as(*member, {{"offset", offsets[i]}, {"ranks", ranks}})));
    }
  }

  // One reduction where the last of them stands, and after it what reads the others.
  void reduce(const Group& group) {
    const size_t first = index_.position(group.members.front()), last = index_.position(group.members.back());
    const auto place = build_.after(group.members.back());
    std::vector<int64_t> offsets;
    Value* sum = collect(group, place.at(group.unit), ".grad", offsets);
    Op* view = nullptr;
    std::unordered_set<const Value*> late;
    for (size_t i = 0; i < group.members.size(); ++i) {
      const Op& member = *group.members[i];
      view = place.like(member).op("view", {sum}, {{member.result()->name(), member.result()->type()}},
                                   as_often_as(member, {{"offset", offsets[i]}}));
      build_.take_place(member.result(), view->result());
      late.insert(member.result());
    }
    for (size_t i = first + 1; i <= last; ++i) {
      Op* op = index_.at(i);
      if (std::ranges::none_of(op->operands, [&](const Value* v) { return late.contains(v); })) continue;
      if (const auto end = end_of_.find(op); end != end_of_.end()) {
        if (end->second > last) continue;  // made where its own group is
        throw UserError(concat("pass copy_buckets: %", op->result()->name(), " is computed from a gradient of unit ",
                               group.unit, " that is reduced with it, or later",
                               "\n  expected gradients that do not read each other's reduced ones"));
      }
      for (const auto& result : op->results()) late.insert(result.get());
      Late& place_of_op = late_[op];
      if (last > place_of_op.end) place_of_op = {last, view};
    }
  }

  Graph& graph_;
  const std::string kind_;
  PassContext& ctx_;
  const ir::Index index_{graph_};
  const ParamNames params_ = params_by_name(graph_);
  ir::Builder build_{graph_};
  std::unordered_map<const Op*, size_t> end_of_;  // where the group of a member is reduced
  struct Late {
    size_t end = 0;
    const Op* after = nullptr;
  };
  std::unordered_map<const Op*, Late> late_;  // readers of reduced gradients that stand before the last group they read
  std::unordered_map<const Op*, std::vector<Op*>> before_;
  std::unordered_set<const Op*> early_;  // in before_
};

}  // namespace

bool copy_buckets(Graph& graph, PassContext& ctx) {
  bool changed = false;
  for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"}) {
    changed |= Merger(graph, kind, ctx).run();
    const auto left = Merger(graph, kind, ctx).find_groups();
    SFSDP_CHECK(left.empty(), left.size(), " units still have several ", kind, " in one region");
  }
  return changed;
}

}  // namespace sfsdp::passes

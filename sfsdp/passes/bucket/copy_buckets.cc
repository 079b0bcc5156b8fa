// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/bucket/copy_buckets.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/insertions.h"
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
    ir::Insertions insertions(graph_);
    for (const Group& group : groups) kind_ == "all_gather" ? gather(group, insertions) : reduce(group, insertions);
    insertions.apply();
    // Readers between a member and the merged collective, before they read something else.
    ir::Moves moves(graph_);
    for (const auto& [place, ops] : behind_) moves.after(place, ops);
    for (const auto& [place, ops] : before_) moves.before(place, ops);
    moves.apply();
    ir::take_places(graph_, replaced_, erased_);
    return !groups.empty();
  }

  // Several of one unit and region, between the same ranks and of one dtype, in the graph's order.
  std::vector<Group> find_groups() {
    std::vector<Group> groups;
    std::map<std::string, size_t> by_key;
    for (const auto& op : graph_.ops()) {
      position_[op.get()] = order_.size();
      order_.push_back(op.get());
      if (!op->is(kind_)) continue;
      const Op* param = param_of_collective(*op);
      if (!param) continue;
      SFSDP_CHECK(param->has_attr("unit"), "param ", param->result()->name(), " has no unit; run wrap first");
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
    return param_of_gradient(graph_, uses_, op.result());
  }

  Op* add(ir::Insertions& insertions, const std::string& opcode, std::vector<Value*> operands, Type type,
          const std::string& name, Op* before, const Op& like) {
    Op* op = insertions.add(opcode, std::move(operands), {{name, std::move(type)}}, before);
    op->section = like.section;
    op->module_path = unit_;
    if (ir::is_once(like)) op->attrs["once"] = true;
    return op;
  }

  // pack -> the collective, before `place`. Offsets are those of the parts in a rank's share of the whole buffer.
  Value* collect(const Group& group, ir::Insertions& insertions, Op* place, const std::string& suffix,
                 std::vector<int64_t>& offsets) {
    unit_ = group.unit;
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
    Op* pack = add(insertions, "pack", parts, Type::tensor(dtype, {gathers ? end : end * ranks}),
                   unit_ + suffix + ".packed", place, like);
    pack->operand_lists = {{0, static_cast<int>(parts.size())}};
    pack->attrs["offsets"] = offsets;
    if (!gathers && ranks > 1) pack->attrs["ranks"] = ranks;
    Op* made = add(insertions, kind_, {pack->result()}, Type::tensor(dtype, {gathers ? end * ranks : end}),
                   unit_ + suffix, place, like);
    made->attrs = like.attrs;
    ctx_.metrics.add("merged", std::ssize(group.members));
    ctx_.metrics.add("buckets", 1);
    erased_.insert(erased_.end(), group.members.begin(), group.members.end());
    return made->result();
  }

  // One gather where the first of them stands; each parameter copied out where its own stood.
  void gather(const Group& group, ir::Insertions& insertions) {
    Op* const place = group.members[0];
    std::vector<int64_t> offsets;
    Value* whole = collect(group, insertions, place, ".full", offsets);
    const Op* pack = whole->producer()->operands[0]->producer();
    for (size_t i = 0; i < group.members.size(); ++i) {
      Op* member = group.members[i];
      if (Op* cast = member->operands[0]->producer(); position_.at(cast) > position_.at(place))
        before_[pack].push_back(cast);
      const Type type = member->result()->type();
      Op* part = add(insertions, "unpack", {whole}, type, member->result()->name(), member, *member);
      part->module_path = member->module_path;
      part->attrs["offset"] = offsets[i];
      part->attrs["ranks"] = type.numel() / member->operands[0]->type().numel();
      replaced_[member->result()] = part->result();
    }
  }

  // One reduction where the last of them stands, and behind it what reads the others.
  void reduce(const Group& group, ir::Insertions& insertions) {
    const size_t first = position_.at(group.members.front()), last = position_.at(group.members.back());
    Op* const place = order_.at(last + 1);
    std::vector<int64_t> offsets;
    Value* sum = collect(group, insertions, place, ".grad", offsets);
    Op* view = nullptr;
    std::unordered_set<const Value*> late;
    for (size_t i = 0; i < group.members.size(); ++i) {
      const Op& member = *group.members[i];
      view = add(insertions, "view", {sum}, member.result()->type(), member.result()->name(), place, member);
      view->module_path = member.module_path;
      view->attrs["offset"] = offsets[i];
      replaced_[member.result()] = view->result();
      late.insert(member.result());
    }
    for (size_t i = first + 1; i < last; ++i) {
      Op* op = order_[i];
      if (std::ranges::none_of(op->operands, [&](const Value* v) { return late.contains(v); })) continue;
      for (const auto& result : op->results()) late.insert(result.get());
      behind_[view].push_back(op);
    }
  }

  Graph& graph_;
  const std::string kind_;
  PassContext& ctx_;
  const Graph::Uses uses_ = graph_.uses();
  std::vector<Op*> order_;
  std::unordered_map<const Op*, size_t> position_;
  std::string unit_;
  std::map<Value*, Value*> replaced_;
  std::vector<Op*> erased_;
  std::unordered_map<const Op*, std::vector<Op*>> before_, behind_;
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

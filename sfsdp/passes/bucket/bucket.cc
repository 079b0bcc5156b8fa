// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/bucket/bucket.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <unordered_set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/update_segments.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/mesh/model_axis.h"
#include "sfsdp/passes/analysis/param_flow.h"
#include "sfsdp/passes/analysis/param_reads.h"
#include "sfsdp/plan/cuts.h"

namespace sfsdp::passes {
namespace {

using ir::Attr, ir::Graph, ir::Op, ir::Section, ir::Type, ir::Value;

bool is_packed(const Op& op) { return op.is("cast", "pad"); }

// Parameters of equal keys have the same collectives and the same kind of update.
std::string key_of(const ParamFlow& m) {
  std::ostringstream key;
  const Type& stored = m.param->result()->type();
  key << m.unit << '|' << ir::to_string(stored.dtype) << '|' << ir::to_string(m.whole.dtype) << '|'
      << join(m.split, ",") << '|' << m.param->has_attr("trainable") << '|' << m.param->attr_or<std::string>("box", "");
  if (m.path) {
    for (const Op* op : m.path->ops) {
      if (op->is("pad")) continue;
      key << '|' << op->opcode << ir::to_string(op->result()->type().dtype);
      if (op->has_attr("axis")) key << op->attrs.at("axis");
    }
    key << '|' << (m.path->scale != nullptr);
  }
  if (m.update) {
    key << '|' << m.update->opcode << m.moments.size();
    for (const auto& [name, value] : m.update->attrs)
      if (name != "weight_decay" && name != "lr_factor") key << ',' << name << '=' << value;  // a segment has its own
  }
  return key.str();
}

struct Bucket {
  std::string name;
  std::vector<ParamFlow> members;
  std::vector<int64_t> offsets;
  int64_t whole = 0, shard = 0;  // elements
  Value* stored = nullptr;
};

class Rewriter {
 public:
  Rewriter(Graph& graph, const ParamReader& reader) : graph_(graph), index_(reader.index()), build_(graph) {}

  void rewrite(Bucket& b) {
    store(b);
    for (const Section section : {Section::Fwd, Section::Loss, Section::Bwd}) materialise(b, section);
    Value* gradient = reduce(b);
    if (b.members[0].update) update(b, gradient);
    for (ParamFlow& m : b.members) build_.erase(m.param);
  }

  void finish() {
    rewrite_norm();
    std::erase_if(graph_.carries, [&](const ir::Carry& c) { return dead_carries_.contains(c.current); });
    graph_.carries.insert(graph_.carries.end(), new_carries_.begin(), new_carries_.end());
    build_.apply("bucket");
  }

  std::map<const Value*, const Bucket*> bucket_of_gradient;  // by the flat gradient
  std::map<Value*, Value*> flat_gradient_of;                 // by a member's gradient

 private:
  ir::Builder::Place before(Op* op) { return build_.before(op).at(unit_); }

  void store(Bucket& b) {
    unit_ = b.members[0].unit;
    const Op* like = b.members[0].param;
    Type type = Type::tensor(like->result()->type().dtype, {b.shard});
    if (b.shard != b.whole) type.dims[0].split = b.members[0].split;
    std::vector<std::string> names;
    std::vector<int64_t> numels;
    for (const ParamFlow& m : b.members) {
      names.push_back(m.name);
      numels.push_back(m.whole.numel());
    }
    ir::Attrs attrs = {{"name", b.name},       {"unit", b.members[0].unit}, {"members", names},
                       {"offsets", b.offsets}, {"numels", numels},          {"size", b.whole}};
    if (auto cuts = cuts_of(b); !cuts.empty()) attrs["cuts"] = std::move(cuts);
    if (like->has_attr("trainable")) attrs["trainable"] = like->attrs.at("trainable");
    attrs.merge(plan::unit_attrs(*like));
    b.stored = before(b.members[0].param).value("param", {}, type, b.name, std::move(attrs));
  }

  // How model axes cut each member; empty: none is cut.
  static std::vector<std::string> cuts_of(const Bucket& b) {
    std::vector<std::string> cuts;
    bool any = false;
    for (const ParamFlow& m : b.members) {
      std::vector<plan::MemberCut> of_member;
      for (size_t d = 0; d < m.whole.dims.size(); ++d)
        for (const std::string& axis : m.whole.dims[d].split)
          if (is_tensor_axis(axis) || is_expert_axis(axis))
            of_member.push_back({static_cast<int64_t>(d), axis,
                                 d == 0 && is_tensor_axis(axis) ? m.param->attr_or("vocabulary", int64_t{0}) : 0});
      any |= !of_member.empty();
      cuts.push_back(plan::to_string(of_member));
    }
    return any ? cuts : std::vector<std::string>();
  }

  // One gather where the first member of the region was gathered; each member a view of it.
  void materialise(Bucket& b, Section section) {
    std::vector<Op*> starts;
    const ParamUse* like = nullptr;
    for (ParamFlow& m : b.members)
      for (ParamUse& use : m.uses)
        if (use.section == section) {
          starts.push_back(use.chain.empty() ? index_.first_of(use.readers) : use.chain[0]);
          if (!like || use.chain.size() > like->chain.size()) like = &use;
        }
    if (starts.empty()) return;
    const auto place = before(index_.first_of(starts)).in(section);
    Value* flat = b.stored;
    for (const Op* op : like->chain) {
      if (op->is("narrow")) continue;
      const auto dtype = op->result()->type().dtype;
      const int64_t size = op->is("all_gather") ? b.whole : flat->type().numel();
      Type type = Type::tensor(dtype, {size});
      if (!op->is("all_gather")) type.dims = flat->type().dims;
      flat = place.value(op->opcode, {flat}, type, b.name + (op->is("cast") ? ".cast" : ".full"), op->attrs);
    }
    for (size_t i = 0; i < b.members.size(); ++i)
      for (ParamUse& use : b.members[i].uses) {
        if (use.section != section) continue;
        Op* const at = use.chain.empty() ? index_.first_of(use.readers) : use.chain[0];
        Value* part =
            build_.before(at)
                .at(b.members[i].param->module_path)
                .value("view", {flat}, use.value->type(), b.members[i].name + ".part", {{"offset", b.offsets[i]}});
        if (use.chain.empty()) {  // the stored value itself has readers in several sections
          for (Op* reader : use.readers) std::ranges::replace(reader->operands, use.value, part);
        } else {
          build_.replace(use.value, part);
        }
        build_.erase(use.chain);
      }
  }

  // pack -> what each member's gradient went through, once.
  Value* reduce(Bucket& b) {
    if (!b.members[0].path) return nullptr;
    std::vector<Value*> parts;
    std::vector<Op*> gradients;
    Op* last = nullptr;
    size_t packed = 0;  // ops of the representative path before the collective
    const GradientPath& like = *b.members[0].path;
    for (const ParamFlow& m : b.members) {
      Value* value = m.path->raw;
      std::vector<Op*> ops = m.path->ops;
      size_t i = 0;
      for (; i < ops.size() && is_packed(*ops[i]) && ir::is_repeated(ops[i]->section); ++i) {
        if (ops[i]->is("pad"))
          build_.erase(ops[i]);
        else
          value = ops[i]->result();
      }
      build_.erase({ops.begin() + static_cast<std::ptrdiff_t>(i), ops.end()});
      if (&*m.path == &like) packed = i;
      parts.push_back(value);
      gradients.push_back(m.path->gradient);
      if (!last || index_.position(value->producer()) > index_.position(last)) last = value->producer();
    }
    const auto after = build_.after(last).in(Section::Bwd).at(unit_);
    const auto head = before(index_.first_of(gradients));
    Type packed_type = Type::tensor(parts[0]->type().dtype, {b.whole});
    packed_type.placements = parts[0]->type().placements;  // summands over a model axis are in buckets of their own
    Value* value = after.list("pack", parts, packed_type, b.name + ".grad.packed", {{"offsets", b.offsets}})->result();
    for (size_t i = packed; i < like.ops.size(); ++i) {
      const Op* op = like.ops[i];
      const int64_t size = op->is("reduce_scatter") ? b.shard : value->type().numel();
      const char* suffix = op->is("reduce_scatter") ? ".grad.rs"
                           : op->is("all_reduce")   ? ".grad.ar"
                           : op->is("mul_scalar")   ? ".grad.mean"
                                                    : ".grad.acc";
      const auto place = ir::is_repeated(op->section) ? after : head.in(op->section);
      Type type = Type::tensor(op->result()->type().dtype, {size});
      type.placements = op->result()->type().placements;
      // On a model axis every type says how the value lies.
      if (size == b.shard && std::ranges::any_of(b.members[0].split, is_token_axis))
        type.dims[0].split = b.members[0].split;
      value = place.value(op->opcode, {value}, type, b.name + suffix, op->attrs);
    }
    Value* flat = head.value("gradient", {value}, value->type(), b.name + ".grad", {{"param", b.name}});
    for (const ParamFlow& m : b.members) {
      flat_gradient_of[m.path->gradient->result()] = flat;
      build_.erase(m.path->gradient);
    }
    bucket_of_gradient[flat] = &b;
    return flat;
  }

  void update(Bucket& b, Value* gradient) {
    std::vector<Op*> updates, scales;
    for (const ParamFlow& m : b.members) {
      updates.push_back(m.update);
      if (m.path->scale) scales.push_back(m.path->scale);
    }
    const Op& like = *b.members[0].update;
    if (!scales.empty())
      gradient = before(index_.first_of(scales))
                     .value("scale", {gradient, scales[0]->operands[1]}, gradient->type(), b.name + ".grad.clipped");
    std::vector<Value*> operands = like.operands;
    operands[0] = b.stored;
    std::vector<Value*> current = {b.stored};
    for (size_t k = 0; k < b.members[0].moments.size(); ++k) {
      const Op* moment = b.members[0].moments[k];
      const std::string suffix = moment->attr<std::string>("name").substr(b.members[0].name.size());
      const Type type = with_dtype(b.stored->type(), moment->result()->type().dtype);
      operands[1 + k] =
          before(b.members[0].moments[0]).value("state", {}, type, b.name + suffix, {{"name", b.name + suffix}});
      current.push_back(operands[1 + k]);
    }
    operands[ir::gradient_operand(like)] = gradient;
    std::vector<Graph::NewResult> results;
    for (const Value* value : current) results.push_back({value->name() + ".new", value->type()});
    Op* made = before(index_.first_of(updates)).op(like.opcode, operands, results, update_attrs(b));
    for (size_t k = 0; k < current.size(); ++k) new_carries_.push_back({current[k], made->result(static_cast<int>(k))});
    for (const ParamFlow& m : b.members) {
      build_.erase(m.update);
      dead_carries_.insert(m.param->result());
      if (m.path->scale) build_.erase(m.path->scale);
      build_.erase(m.moments);
      for (const Op* moment : m.moments) dead_carries_.insert(moment->result());
    }
  }

  // Those of the members' updates; numbers that differ become segments.
  static ir::Attrs update_attrs(const Bucket& b) {
    std::vector<ir::UpdateSegment> segments;
    for (size_t i = 0; i < b.members.size(); ++i) {
      const ir::UpdateSegment own = ir::update_segments(*b.members[i].update, 0, b.members[i].whole.numel())[0];
      const int64_t end = i + 1 < b.members.size() ? b.offsets[i + 1] : b.whole;
      segments.push_back({b.offsets[i], end, own.weight_decay, own.lr_factor});
    }
    ir::Attrs attrs = b.members[0].update->attrs;
    ir::set_update_segments(attrs, segments, b.shard == b.whole ? std::vector<std::string>{} : b.members[0].split);
    return attrs;
  }

  // A sum per parameter still, in the order of the buckets.
  void rewrite_norm() {
    for (const auto& op : graph_.ops()) {
      if (!op->is("sum_squares")) continue;
      std::vector<bool> replicated(op->operands.size());
      if (op->has_attr("replicated")) replicated = op->attr<std::vector<bool>>("replicated");
      const auto once = op->attr_or<std::vector<bool>>("counted_once", {});
      const auto boxed = op->attr_or<std::vector<bool>>("boxed", {});
      std::map<const Value*, bool> once_of;
      for (size_t i = 0; i < once.size(); ++i) once_of[op->operands[i]] = once[i];
      std::vector<Value*> operands;
      std::vector<bool> flags, once_flags, boxed_flags;
      std::vector<int64_t> segments, offsets, numels;
      std::set<const Value*> seen;
      for (size_t i = 0; i < op->operands.size(); ++i) {
        const auto flat = flat_gradient_of.find(op->operands[i]);
        Value* value = flat == flat_gradient_of.end() ? op->operands[i] : flat->second;
        if (!seen.insert(value).second) continue;
        operands.push_back(value);
        flags.push_back(replicated[i]);
        if (!boxed.empty()) boxed_flags.push_back(boxed[i]);
        const auto found = bucket_of_gradient.find(value);
        segments.push_back(found == bucket_of_gradient.end() ? 0 : static_cast<int64_t>(found->second->members.size()));
        if (found == bucket_of_gradient.end()) {
          once_flags.push_back(once_of[value]);
          continue;
        }
        for (size_t k = 0; k < found->second->members.size(); ++k) {
          once_flags.push_back(once_of[found->second->members[k].path->gradient->result()]);
          offsets.push_back(found->second->offsets[k]);
          numels.push_back(found->second->members[k].whole.numel());
        }
      }
      op->operand_lists = {{0, static_cast<int>(operands.size())}};
      op->operands = std::move(operands);
      op->attrs["replicated"] = flags;
      if (!once.empty()) op->attrs["counted_once"] = once_flags;
      if (!boxed.empty()) op->attrs["boxed"] = boxed_flags;
      op->attrs["segments"] = segments;
      op->attrs["offsets"] = offsets;
      op->attrs["numels"] = numels;
    }
  }

  Graph& graph_;
  const ir::Index& index_;
  ir::Builder build_;
  std::string unit_;
  std::unordered_set<const Value*> dead_carries_;
  std::vector<ir::Carry> new_carries_;
};

std::string group_of(const ParamFlow& m) { return m.param->attr_or<std::string>("group", ""); }

// Members of a group (pass group_weights) side by side, where the first of them stands.
void put_groups_together(std::vector<ParamFlow>& members) {
  std::map<std::string, size_t> first;
  std::vector<std::pair<size_t, size_t>> order;  // where it stands, or its group; where it stands
  for (size_t i = 0; i < members.size(); ++i) {
    const std::string group = group_of(members[i]);
    order.emplace_back(group.empty() ? i : first.emplace(group, i).first->second, i);
  }
  std::ranges::sort(order);
  std::vector<ParamFlow> sorted;
  for (const auto& [group, i] : order) sorted.push_back(std::move(members[i]));
  members = std::move(sorted);
}

std::vector<Bucket> form_buckets(const Graph& graph, const ParamReader& reader, const BucketOptions& options) {
  std::vector<Bucket> buckets;
  std::map<std::string, size_t> by_key;
  std::map<std::string, int> in_unit;
  for (const auto& op : graph.ops()) {
    if (!op->is("param") || op->has_attr("members")) continue;
    ParamFlow m = reader.read(op.get());
    if (!op->has_attr("unit"))
      throw UserError(concat("pass bucket: parameter ", m.name, " has no unit\n  expected unit=; run pass wrap first"));
    reader.require_regular(m, "bucket");
    if (m.update && m.update->has_attr("begins"))
      throw UserError(
          concat("pass bucket: parameter ", m.name, " is updated in segments, as a bucket is",
                 "\n  expected one decay and one learning rate of each parameter; this pass makes segments"));
    m.unit = op->attr<std::string>("unit");
    const auto [place, fresh] = by_key.emplace(key_of(m), buckets.size());
    if (fresh) {
      const int number = in_unit[m.unit]++;
      buckets.emplace_back().name = m.unit + ".flat" + (number == 0 ? "" : std::to_string(number));
    }
    buckets[place->second].members.push_back(std::move(m));
  }
  for (Bucket& b : buckets) {
    put_groups_together(b.members);
    const ParamFlow& first = b.members[0];
    const int64_t smallest =
        std::min(ir::size_in_bytes(first.param->result()->type().dtype), ir::size_in_bytes(first.whole.dtype));
    const int64_t alignment = std::max<int64_t>(options.alignment / smallest, 1);
    int64_t end = 0;
    for (size_t i = 0; i < b.members.size(); ++i) {
      const bool follows =
          i > 0 && !group_of(b.members[i]).empty() && group_of(b.members[i]) == group_of(b.members[i - 1]);
      b.offsets.push_back(follows ? end : round_up(end, alignment));
      end = b.offsets.back() + b.members[i].whole.numel();
    }
    const int64_t ranks = ir::axis_size(graph, first.split).value();
    b.whole = round_up(end, ranks * alignment);
    b.shard = b.whole / ranks;
  }
  return buckets;
}

std::vector<Bucket> buckets_of_layout(const Graph& graph, const ParamReader& reader,
                                      const plan::BucketLayouts& layout) {
  std::map<std::string, Op*> params;
  for (const auto& op : graph.ops())
    if (op->is("param")) params[op->attr<std::string>("name")] = op.get();
  std::vector<Bucket> buckets;
  size_t members = 0;
  for (const plan::BucketLayout& row : layout) {
    Bucket& b = buckets.emplace_back();
    b.name = row.name;
    b.offsets = row.offsets;
    b.whole = row.whole;
    b.shard = row.shard;
    for (size_t i = 0; i < row.members.size(); ++i) {
      const auto found = params.find(row.members[i]);
      SFSDP_CHECK(found != params.end(), "the layout has parameter ", row.members[i], ", the graph has not");
      ParamFlow m = reader.read(found->second);
      m.unit = row.name.substr(0, row.name.rfind('.'));
      SFSDP_CHECK(m.whole.numel() == row.numels[i], m.name, " has ", m.whole.numel(), " elements, ", row.numels[i],
                  " in the layout");
      b.members.push_back(std::move(m));
    }
    members += row.members.size();
    for (const ParamFlow& m : b.members)
      if (m.path.has_value() != b.members[0].path.has_value())
        throw UserError(concat("parameter ", (m.path ? b.members[0] : m).name, " has no gradient for this batch, but ",
                               (m.path ? m : b.members[0]).name, ", stored with it, has one",
                               "\n  expected the same parameters to be used for every batch shape; for a model that"
                               " changes which it uses set DataParallelOptions::layout = ParameterLayout::Dim0"));
  }
  SFSDP_CHECK(members == params.size(), params.size(), " parameters, ", members, " in the layout");
  return buckets;
}

void check_bucketed(const Graph& graph) {
  std::map<std::pair<const Op*, Section>, int> gathers;
  for (const auto& op : graph.ops()) {
    if (op->is("param")) SFSDP_CHECK(op->has_attr("members"), "param ", op->result()->name(), " is in no bucket");
    if (!op->is("all_gather")) continue;
    if (const Op* param = param_of(op->result()))
      SFSDP_CHECK(++gathers[std::make_pair(param, op->section)] == 1, "bucket ", param->result()->name(),
                  " is gathered twice in section ", ir::to_string(op->section));
  }
}

}  // namespace

const std::vector<Field<BucketOptions>>& BucketOptions::fields() {
  static const std::vector<Field<BucketOptions>> kFields = {
      field("alignment", &BucketOptions::alignment, {1, 1 << 20},
            "bytes, of each parameter in its bucket and of each rank's shard")};
  return kFields;
}

bool bucket(Graph& graph, const BucketOptions& options, PassContext& ctx) {
  const ParamReader reader(graph);
  std::vector<Bucket> buckets =
      ctx.layout ? buckets_of_layout(graph, reader, *ctx.layout) : form_buckets(graph, reader, options);
  if (buckets.empty()) return false;
  Rewriter rewriter(graph, reader);
  for (Bucket& b : buckets) {
    rewriter.rewrite(b);
    ctx.metrics.add("params_merged", static_cast<int64_t>(b.members.size()));
    for (const ParamFlow& m : b.members) ctx.metrics.add("elements", m.whole.numel());
    ctx.metrics.add("elements_of_padding", b.whole);
  }
  rewriter.finish();
  ctx.metrics.add("elements_of_padding", -ctx.metrics.get("elements"));
  ctx.metrics.add("buckets", static_cast<int64_t>(buckets.size()));
  check_bucketed(graph);
  return true;
}

}  // namespace sfsdp::passes

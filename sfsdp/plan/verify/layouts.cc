// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/layouts.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/by_rank.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/mesh/model_axis.h"
#include "sfsdp/plan/cuts.h"
#include "sfsdp/plan/verify/own_rows_layouts.h"
#include "sfsdp/plan/verify/padding.h"
#include "sfsdp/plan/verify/part_layouts.h"
#include "sfsdp/plan/verify/range_layouts.h"
#include "sfsdp/plan/verify/ring_layouts.h"
#include "sfsdp/plan/verify/row_layouts.h"
#include "sfsdp/plan/verify/sequence_layouts.h"
#include "sfsdp/plan/verify/vocabulary_layouts.h"
#include "sfsdp/plan/verify/whole_sizes.h"

namespace sfsdp::plan {
namespace {

using ir::Graph, ir::Op, ir::Value;
using Kind = Layout::Kind;
using Integers = std::vector<int64_t>;

// A part of a flat buffer.
struct Segment {
  int64_t offset = 0, numel = 0;
  Layout layout;
  bool operator==(const Segment&) const = default;
};
using Segments = std::vector<Segment>;

// One axis at a time.
class LayoutChecker {
 public:
  LayoutChecker(const Graph& graph, const ir::MeshAxis& axis)
      : graph_(graph), axis_(axis.name), ranks_(axis.size), layouts_(graph) {}

  std::string check() {
    find_moments();
    for (const auto& op : graph_.ops())
      if (std::string wrong = visit(*op); !wrong.empty()) return wrong;
    return check_ends();
  }

 private:
  std::string error(const Op& op, const std::string& what, const std::string& cure) const {
    return concat("over ", axis_, ": ", what, "\n    ", ir::print(op), "\n  ", cure);
  }
  const Layout& layout_of(const Value* value) const { return layouts_[value]; }
  std::vector<Layout> layouts_of(const Op& op) const {
    std::vector<Layout> all(op.operands.size());
    for (size_t k = 0; k < all.size(); ++k)
      if (op.operands[k]) all[k] = layout_of(op.operands[k]);
    return all;
  }
  bool over_this_axis(const Op& op) const {
    const auto axes = ir::axes_of(op);
    return axes && std::ranges::find(*axes, axis_) != axes->end();
  }

  // Sets the results, and holds them against what their types say.
  std::string set(const Op& op, const std::vector<Layout>& results) {
    for (size_t r = 0; r < results.size(); ++r) {
      const Value* value = op.results()[r].get();
      layouts_[value] = results[r];
      if (results[r].kind == Kind::Flat) continue;
      Layout told = results[r];
      if (told.kind == Kind::Rows) told.flat = -1;  // by which offsets no type says
      if (told.kind == Kind::Passed || told.kind == Kind::Terms || told.kind == Kind::Attended)
        told = {Kind::Cut, told.dim, -1, told.blocks};  // nor whose part it is, or how much of it
      told = without_range(told);
      if (told.part >= 0) told.part = -1, told.shift = 0;  // which no type says either
      if (const Layout named = named_by(*value); named != told && value->type().kind != ir::Type::Kind::Token)
        return error(op, concat('%', value->name(), " is ", to_text(results[r]), ", its type says ", to_text(named)),
                     "expected the type to say how the value lies");
    }
    return "";
  }
  std::string set(const Op& op, const Layout& layout) {
    return set(op, std::vector<Layout>(op.results().size(), layout));
  }

  Layout named_by(const Value& value) const {
    const ir::Placement placement = value.type().placement_on(axis_);
    switch (placement.kind) {
      case ir::Placement::Kind::Shard: return {Kind::Cut, placement.dim, -1, placement.blocks};
      case ir::Placement::Kind::Partial: return {Kind::Summand};
      case ir::Placement::Kind::Rows: return {Kind::Rows, placement.dim};
      default: return {};
    }
  }

  // ---- flat buffers

  Layout flat(Segments segments) {
    const auto is_whole = [](const Segment& segment) { return segment.layout.kind == Kind::Whole; };
    if (std::ranges::all_of(segments, is_whole)) return {};
    const auto is_summand = [](const Segment& segment) { return segment.layout.kind == Kind::Summand; };
    if (std::ranges::all_of(segments, is_summand)) return {Kind::Summand};
    const auto found = std::ranges::find(flats_, segments);
    const auto index = static_cast<int>(found - flats_.begin());
    if (found == flats_.end()) flats_.push_back(std::move(segments));
    return {Kind::Flat, -1, index};
  }
  // nullptr: none of exactly this range.
  const Segment* segment_at(const Layout& layout, int64_t offset, int64_t numel) const {
    const Segments& segments = flats_[static_cast<size_t>(layout.flat)];
    const auto found =
        std::ranges::find_if(segments, [&](const Segment& s) { return s.offset == offset && s.numel == numel; });
    return found == segments.end() ? nullptr : &*found;
  }

  Layout bucket(const Op& param) {
    const auto& cuts = param.attr<std::vector<std::string>>("cuts");
    const auto &offsets = param.attr<Integers>("offsets"), &numels = param.attr<Integers>("numels");
    Segments segments;
    for (size_t i = 0; i < cuts.size(); ++i) {
      const std::vector<MemberCut> member = parse_member_cuts(cuts[i]);
      const auto here = std::ranges::find(member, axis_, &MemberCut::axis);
      segments.push_back({offsets[i], numels[i], here != member.end() ? Layout{Kind::Cut, here->dim} : Layout()});
    }
    return flat(std::move(segments));
  }

  std::string pack(const Op& op) {
    Segments segments;
    const auto& offsets = op.attr<Integers>("offsets");
    for (size_t i = 0; i < op.operands.size(); ++i)
      segments.push_back({offsets[i], op.operands[i]->type().numel(), layout_of(op.operands[i])});
    const Layout made = flat(segments);
    for (size_t i = 0; i < segments.size(); ++i)
      if (const Kind kind = segments[i].layout.kind;
          kind == Kind::Flat || kind == Kind::Rows || (kind == Kind::Summand && made.kind != kind))
        return error(op, concat("operand ", i, " is ", to_text(segments[i].layout)),
                     "expected what is whole or cut; reduce it");
    if (made.kind == Kind::Flat && op.has_attr("ranks"))
      return error(op, "parts of a model axis are packed by rank", "expected no ranks=");
    return set(op, made);
  }

  std::string view(const Op& op) {
    const Layout& from = layout_of(op.operands[0]);
    if (from.kind == Kind::Whole) return set(op, from);
    const auto* offset = op.find_attr<int64_t>("offset");
    if (from.kind != Kind::Flat)
      return offset
                 ? error(op, concat("a range of what is ", to_text(from)), "expected a range of a whole, or a member")
                 : by_row(op);
    const Segment* segment = offset ? segment_at(from, *offset, op.result()->type().numel()) : nullptr;
    if (!segment) return error(op, "no member of the buffer lies there", "expected one member, as a whole");
    return set(op, segment->layout);
  }

  // ---- collectives, updates, the norm

  std::string collective(const Op& op) {
    const Layout before = layout_of(op.operands[0]);
    const auto kind = ir::collective_kind(op);
    if (kind == "all_to_all_v") return exchange_of_rows(op, before);
    const bool sums = ir::reduce_op(op) == ir::ReduceOp::Sum;
    const bool reduces = kind == "reduce_scatter" || kind == "all_reduce";
    if (!over_this_axis(op)) {
      if (reduces && !sums && before.kind == Kind::Summand)
        return error(op, "the largest of summands is not that of their sums", "expected the sum; reduce it first");
      return within(op, before);
    }
    const auto* dim = op.find_attr<int64_t>("dim");
    const auto* split = op.find_attr<int64_t>("split");
    const auto wrong = [&](const char* expected) {
      return error(op, concat(kind, " of what is ", to_text(before)), expected);
    };
    if (kind == "broadcast") return before.kind == Kind::Whole ? set(op, before) : wrong("expected what is whole");
    if (kind == "all_gather") {
      if (before != Layout{Kind::Cut, *dim}) return wrong("expected what is cut in the dimension that is gathered");
      return set(op, Layout());
    }
    if (kind == "all_to_all") {
      if (before != Layout{Kind::Cut, op.attr<int64_t>("join")})
        return wrong("expected what is cut in the dimension that is joined");
      return set(op, Layout{Kind::Cut, *split});
    }
    if (before.kind == Kind::Whole && !sums) return set(op, before);
    if (before.kind != Kind::Summand || !sums) return wrong("expected a summand, and op=sum");
    return set(op, kind == "all_reduce" ? Layout() : Layout{Kind::Cut, *dim});
  }

  // By an index and offsets that all ranks have: it says of each row where it comes from and where it goes.
  std::string exchange_of_rows(const Op& op, const Layout& before) {
    for (size_t k = 1; k < op.operands.size(); ++k)
      if (const Layout& told = layout_of(op.operands[k]); told.kind != Kind::Whole)
        return error(op,
                     concat(k == 1   ? "the index is "
                            : k == 2 ? "the offsets are "
                                     : "the round is ",
                            to_text(told)),
                     "expected what all ranks have");
    if (!over_this_axis(op)) {
      if (before.kind == Kind::Rows || (before.kind == Kind::Cut && before.dim == 0))
        return error(op, concat("rows of what is ", to_text(before), " over ", axis_, " are sent by their numbers"),
                     "expected the whole, or another dimension");
      return set(op, before);
    }
    if (ir::axes_of(op)->size() != 1)
      return error(op, "a rank's rows over several axes", concat("expected axis=", axis_));
    const Layout rows = {Kind::Rows, 0, offsets_of(op, 2)}, part = {Kind::Cut, 0};
    const bool to_rows = ir::sends_to_rows(op);
    if (const Layout& expected = to_rows ? part : rows; before != expected)
      return error(
          op, concat("rows of what is ", to_text(before), before.kind == Kind::Rows ? " by others" : "", " are sent"),
          concat("expected it ", to_text(expected), to_rows ? "" : ", by these offsets"));
    return set(op, to_rows ? rows : part);
  }

  // Over other axes, in the dimension that is cut: what cuts it outside of this one makes fewer of its blocks, what cuts it within
  // leaves their number.
  std::string within(const Op& op, const Layout& before) {
    for (const char* key : {"split", "join"})
      if (const auto* moved = op.find_attr<int64_t>(key); moved && before.kind == Kind::Cut && before.dim == *moved)
        return error(op, concat(key, '=', *moved, " of what is ", to_text(before)), "expected another dimension");
    const auto* dim = op.find_attr<int64_t>("dim");
    if (before.kind == Kind::Rows)  // there the ranks have others in front
      return error(op, concat(ir::collective_kind(op), " of what is ", to_text(before)),
                   "expected spread_rows before it");
    if (before.kind != Kind::Cut || !dim || before.dim != *dim) return set(op, before);
    const bool joins = ir::collective_kind(op) == "all_gather";
    const ir::Dim& cut = (joins ? op.operands[0] : op.result())->type().dims[static_cast<size_t>(*dim)];
    const auto place = [&](const std::string& axis) { return std::ranges::find(cut.split, axis) - cut.split.begin(); };
    const std::vector<std::string> axes = *ir::axes_of(op);
    const bool outside = std::ranges::all_of(axes, [&](const auto& axis) { return place(axis) < place(axis_); });
    const bool inside = std::ranges::all_of(axes, [&](const auto& axis) { return place(axis) > place(axis_); });
    const int64_t ranks = ir::axis_size(graph_, axes).value_or(1);
    Layout after = before;
    if (outside) after.blocks = joins ? before.blocks * ranks : before.blocks / ranks;
    if ((!outside && !inside) || (outside && !joins && before.blocks % ranks != 0))
      return error(op, concat("what it ", joins ? "joins" : "cuts", " is ", to_text(before), " over ", axis_),
                   "expected another dimension, or whole blocks");
    return set(op, after);
  }

  // What all ranks have, as parts or as summands.
  std::string apart(const Op& op) {
    const Layout before = layout_of(op.operands[0]);
    if (!over_this_axis(op)) return before.kind == Kind::Cut && op.is("own_part") ? within(op, before) : by_row(op);
    if (before.kind != Kind::Whole)
      return error(op, concat(op.is("own_part") ? "a part" : "a summand", " of what is ", to_text(before)),
                   "expected what all ranks have");
    return set(op, op.is("own_part") ? Layout{Kind::Cut, op.attr<int64_t>("dim")} : Layout{Kind::Summand});
  }

  // Which rows of a rank's an op works on: of these groups, and where it has room for some, those of a round.
  struct Offsets {
    const Value *ends = nullptr, *round = nullptr;
    int64_t room = 0;
    bool operator==(const Offsets&) const = default;
  };
  int number_of(const Offsets& offsets) {
    const auto found = std::ranges::find(offsets_, offsets);
    if (found != offsets_.end()) return static_cast<int>(found - offsets_.begin());
    offsets_.push_back(offsets);
    return static_cast<int>(offsets_.size()) - 1;
  }
  //   ends: which operand; the round is the one after it, if it is there
  int offsets_of(const Op& op, size_t ends) {
    return number_of({op.operands[ends], ends + 1 < op.operands.size() ? op.operands[ends + 1] : nullptr,
                      op.attr_or<int64_t>("room", 0)});
  }

  // What a rank of this axis has of groups side by side.
  std::string rows(const Op& op) {
    if (ir::axes_of(op)->size() != 1)
      return error(op, "a rank's rows over several axes", concat("expected axis=", axis_));
    const bool says_ends = op.is("own_ends", "further_rounds");
    for (size_t k = says_ends ? 0 : 1; k < op.operands.size(); ++k)
      if (const Layout& told = layout_of(op.operands[k]); told.kind != Kind::Whole)
        return error(op, concat("the offsets are ", to_text(told)), "expected what all ranks have");
    if (says_ends) return set(op, op.is("own_ends") ? Layout{Kind::Cut, 0} : Layout());
    const Layout own = {Kind::Rows, op.attr<int64_t>("dim"), offsets_of(op, 1)};
    const Layout before = layout_of(op.operands[0]), expected = op.is("own_rows") ? Layout() : own;
    if (before != expected)
      return error(op,
                   concat(op.opcode, " of what is ", to_text(before), before.kind == Kind::Rows ? " by others" : ""),
                   concat("expected it ", to_text(expected), op.is("own_rows") ? "" : ", by these offsets"));
    return set(op, op.is("own_rows") ? own : Layout{Kind::Summand});
  }

  // A product of the groups that a rank has: by the offsets within its rows, with its matrices or of its rows.
  std::string product_of_own_groups(const Op& op) {
    if (op.operands.size() > 3 && op.operands[3]) return error(op, "a rank's groups with a bias", "expected none");
    const Op& ends = *op.operands[2]->producer();
    const int by = offsets_of(ends, 0);
    const bool is_stack = op.operands[1]->type().dims.size() == 3;
    const Layout rows = {Kind::Rows, 0, by}, columns = {Kind::Rows, 1, by}, groups = {Kind::Cut, 0};
    const Layout expected[] = {is_stack ? rows : columns, is_stack ? groups : rows};
    for (size_t k = 0; k < 2; ++k)
      if (const Layout is = layout_of(op.operands[k]); is != expected[k])
        return error(op, concat("operand ", k, " is ", to_text(is), is.kind == Kind::Rows ? " by others" : ""),
                     concat("expected it ", to_text(expected[k]), ", as a rank's groups are"));
    if (const int64_t at_once = op.operands[0]->type().dims[is_stack ? 0 : 1].size;
        ends.has_attr("room") && at_once != ends.attr<int64_t>("room"))
      return error(op, concat("groups within ", ends.attr<int64_t>("room"), " rows of ", at_once), "expected as many");
    return set(op, is_stack ? rows : groups);
  }
  bool has_own_groups(const Op& op) const {
    if (!op.is("aten._grouped_mm") || !op.operands[2]) return false;
    const Op& ends = *op.operands[2]->producer();
    return ends.is("own_ends") && over_this_axis(ends);
  }

  // A trip begins with what stood before the loop, and leaves it as it lay: what is carried is the same kind of thing in each.
  std::string begin_loop(const Op& op) {
    if (const Layout& number = layout_of(op.operands[0]); number.kind != Kind::Whole)
      return error(op, concat("the number of trips is ", to_text(number)), "expected what all ranks have");
    std::vector<Layout> carried = layouts_of(op);
    carried.erase(carried.begin());
    begun_ = carried;
    return set(op, carried);
  }
  std::string end_loop(const Op& op) {
    const std::vector<Layout> left = layouts_of(op);
    for (size_t k = 0; k < left.size(); ++k)
      if (left[k] != begun_.at(k))
        return error(op, concat("a trip leaves %", op.operands[k]->name(), ", which is ", to_text(left[k])),
                     concat("expected it ", to_text(begun_[k]), ", as it began"));
    return set(op, left);
  }

  std::string update(const Op& op) {
    const Layout param = layout_of(op.operands[0]);
    for (size_t i = 1; i < op.operands.size(); ++i) {
      if (!op.operands[i]) continue;
      const Layout layout = layout_of(op.operands[i]), expected = i <= ir::gradient_operand(op) ? param : Layout();
      if (layout != expected)
        return error(
            op, concat("operand ", i, ", %", op.operands[i]->name(), ", is ", to_text(layout)),
            concat("expected it ", to_text(expected), i <= ir::gradient_operand(op) ? ", as the parameter" : ""));
    }
    return set(op, param);
  }

  // One sum per parameter: over the axis it counts once.
  std::string sum_squares(const Op& op) {
    const auto segments = op.attr_or<Integers>("segments", Integers(op.operands.size()));
    const auto offsets = op.attr_or<Integers>("offsets", {}), numels = op.attr_or<Integers>("numels", {});
    const auto once = op.attr_or<std::vector<bool>>(is_tensor_axis(axis_) ? "counted_once" : "replicated", {});
    const bool here = over_this_axis(op);
    const auto boxed = op.attr_or<std::vector<bool>>("boxed", std::vector<bool>(op.operands.size()));
    if (is_expert_axis(axis_) && op.has_attr("boxed")) {
      const auto axes = ir::axes_of(op).value_or(std::vector<std::string>());
      const auto outside = std::ranges::find_if(axes, [](const std::string& axis) { return is_tensor_axis(axis); });
      const int64_t boxes = op.attr_or<int64_t>("boxes", 0), ranks = ir::axis_size(graph_, AxisList{axis_}).value_or(0);
      if (boxes != ranks || outside == axes.begin() || *std::prev(outside) != axis_)
        return error(op, concat("boxes=", boxes, " of ", ranks, " ranks"),
                     concat("expected boxes=", ranks, ", and ", axis_, " innermost of what shares out parameters"));
    }
    size_t sum = 0, at = 0;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const Layout& operand = layout_of(op.operands[i]);
      if (is_expert_axis(axis_) && segments[i] > 0 && boxed[i] != (operand.kind == Kind::Flat))
        return error(op, concat("operand ", i, " is ", to_text(operand), boxed[i] ? ", and boxed" : ", and not boxed"),
                     "expected boxed= buffers of a rank's experts alone");
      for (int64_t part = 0; part < std::max<int64_t>(segments[i], 1); ++part, ++sum) {
        Layout layout = operand;
        if (operand.kind == Kind::Flat) {
          const Segment* segment = segments[i] > 0 ? segment_at(operand, offsets[at], numels[at]) : nullptr;
          if (!segment) return error(op, concat("sum ", sum, " is of no member of the buffer"), "expected one member");
          layout = segment->layout;
        }
        at += segments[i] > 0 ? 1 : 0;
        const size_t flag = is_tensor_axis(axis_) ? sum : i;  // counted_once= is by sum, replicated= by operand
        const bool is_once = here && flag < once.size() && once[flag];
        if (layout.kind == Kind::Summand || layout.kind == Kind::Rows ||
            (layout.kind == Kind::Cut && (!here || is_once)) || (layout.kind == Kind::Whole && here && !is_once))
          return error(op, concat("sum ", sum, " is of what is ", to_text(layout), is_once ? ", and counts once" : ""),
                       concat("expected axis= to name ", axis_, ", and ",
                              is_tensor_axis(axis_) ? "counted_once" : "replicated", "= what is whole"));
      }
    }
    return set(op, here ? Layout{Kind::Summand} : Layout());
  }

  // ---- the walk

  // A moment lies as the parameter that it is updated with.
  void find_moments() {
    for (const auto& op : graph_.ops())
      if (ir::is_update(*op))
        for (size_t i = 1; i < ir::gradient_operand(*op); ++i)
          if (op->operands[i]) param_of_[op->operands[i]] = op->operands[0];
  }

  // Whether this axis cuts members of the flat buffer, and not the buffer.
  bool holds_boxes(const Op& param) const {
    const auto* cuts = param.find_attr<std::vector<std::string>>("cuts");
    return cuts && (is_tensor_axis(axis_) || std::ranges::any_of(*cuts, [&](const std::string& text) {
                      const std::vector<MemberCut> member = parse_member_cuts(text);
                      return std::ranges::find(member, axis_, &MemberCut::axis) != member.end();
                    }));
  }

  std::string root(const Op& op) {
    const Value* value = op.result();
    const auto param = param_of_.find(value);
    const Value* like = param == param_of_.end() ? value : param->second;
    if (holds_boxes(*like->producer())) return set(op, bucket(*like->producer()));
    if (value->type().placement_on(axis_).kind == ir::Placement::Kind::Own)
      return error(op, "each rank has its own", "expected all ranks of a model axis to have the same samples");
    return set(op, named_by(*value));
  }

  // Where elements of buffers stay in their places.
  std::string of_flats(const Op& op, const std::vector<Layout>& operands) {
    if (!op.is("cast", "wait", "gradient", "accumulate", "add_into", "store", "scale", "mul_scalar", "div"))
      return error(op, "a buffer of parts is read as if it were one tensor", "expected views of its members");
    Layout flat;
    for (size_t k = 0; k < operands.size(); ++k) {
      const bool is_flat = operands[k].kind == Kind::Flat;
      if ((is_flat && flat.kind == Kind::Flat && flat != operands[k]) ||
          (!is_flat && (operands[k].kind != Kind::Whole || op.operands[k]->type().numel() > 1)))
        return error(op, "a buffer of parts meets what lies otherwise",
                     "expected buffers of the same members, or a number");
      if (is_flat) flat = operands[k];
    }
    return set(op, flat);
  }

  std::vector<Layout> named_by(const Op& op) const {
    std::vector<Layout> named;
    for (const auto& result : op.results()) named.push_back(named_by(*result));
    return named;
  }
  std::string by_row(const Op& op) {
    const std::vector<Layout> operands = layouts_of(op);
    const auto made = range_layouts(op, operands);
    if (made) return set(op, *made);
    RowLayouts by_row = row_layouts(op, operands, named_by(op));
    if (by_row.wrong.empty()) by_row.wrong = wrong_at_whole_sizes(graph_, op, operands, by_row.results, ranks_);
    return set(op, by_row);
  }

  std::string set(const Op& op, const RowLayouts& made) {
    if (made.wrong.empty()) return set(op, made.results);
    std::string is;
    for (const Value* operand : op.operands)
      if (operand && layout_of(operand).kind != Kind::Whole)
        is += concat(is.empty() ? "" : ", ", '%', operand->name(), " is ", to_text(layout_of(operand)));
    return error(op, concat(made.wrong, " (", is, ")"), "expected a collective before it");
  }

  // What is made of the range that an op's operands are of, by whichever rule says what it makes of all rows.
  std::string of_own_rows(const Op& op, const Layout& range) {
    const std::vector<Layout> operands = layouts_of(op);
    for (const Value* operand : op.operands)
      if (operand) layouts_[operand] = without_range(layout_of(operand));
    std::string wrong = visit(op);
    for (size_t k = 0; k < operands.size(); ++k)
      if (op.operands[k]) layouts_[op.operands[k]] = operands[k];
    for (const auto& result : op.results()) layouts_[result.get()] = with_range(layout_of(result.get()), range);
    return wrong;
  }

  std::string visit(const Op& op) {
    if (ir::is_root(op)) return root(op);
    const std::vector<Layout> given = layouts_of(op);
    if (const auto made = own_rows_layouts(op, given)) return set(op, *made);
    const OwnRows own = own_rows_of(op, given);
    if (!own.wrong.empty()) return error(op, own.wrong, "expected the same rows of both");
    if (own.range) return of_own_rows(op, *own.range);
    if (ir::is_loop(op)) return begin_loop(op);
    if (op.is("end")) return end_loop(op);
    const std::vector<Layout> named = named_by(op);
    const bool here = over_this_axis(op);
    if (const auto made = part_layouts(op, given, named, here, ranks_)) return set(op, *made);
    if (op.is("own_part", "as_summand")) return apart(op);
    if (op.is("own_rows", "spread_rows", "own_ends", "further_rounds") && here) return rows(op);
    if (has_own_groups(op)) return product_of_own_groups(op);
    if (const auto made = ring_layouts(op, given, named, here, ranks_)) return set(op, *made);
    if (here)
      if (const auto made = vocabulary_layouts(op, given)) return set(op, *made);
    if (const auto made = sequence_layouts(op, given, here)) return set(op, *made);
    const auto coordinates = ir::coordinate_axes(op);
    if (std::ranges::find(coordinates, axis_) != coordinates.end())
      return error(op, "what it does depends on the rank's coordinate", "expected none beside a model axis yet");
    if (ir::is_collective(op)) return collective(op);
    if (ir::is_update(op)) return update(op);
    if (op.is("sum_squares")) return sum_squares(op);
    if (op.is("pack")) return pack(op);
    if (op.is("view")) return view(op);
    if (std::ranges::find(given, Kind::Flat, &Layout::kind) != given.end()) return of_flats(op, given);
    return by_row(op);
  }

  std::string check_ends() const {
    for (const Value* output : graph_.outputs)
      if (const Layout& layout = layout_of(output); layout.kind != Kind::Whole)
        return error(*output->producer(), concat("the step returns %", output->name(), ", which is ", to_text(layout)),
                     "expected what all ranks have");
    for (const ir::Carry& carry : graph_.carries)
      if (layout_of(carry.current) != layout_of(carry.next))
        return error(*carry.next->producer(),
                     concat('%', carry.current->name(), " is ", to_text(layout_of(carry.current)),
                            ", what the next step has in its place ", to_text(layout_of(carry.next))),
                     "expected the same of both");
    return "";
  }

  const Graph& graph_;
  std::string axis_;
  int64_t ranks_;
  ir::ValueTable<Layout> layouts_;
  std::vector<Segments> flats_;
  std::vector<Offsets> offsets_;                             // of groups of which each rank has some
  std::vector<Layout> begun_;                                // what the loop carries whose body is walked
  std::unordered_map<const Value*, const Value*> param_of_;  // by moment
};

}  // namespace

std::string verify_layouts(const ir::Graph& graph) {
  for (const ir::MeshAxis& axis : graph.mesh) {
    if (axis.size == 1 || !is_model_axis(axis.name)) continue;
    if (std::string wrong = LayoutChecker(graph, axis).check(); !wrong.empty()) return wrong;
    if (!is_tensor_axis(axis.name)) continue;
    if (std::string wrong = verify_padding(graph, axis); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace sfsdp::plan

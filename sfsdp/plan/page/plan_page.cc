// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/page/plan_page.h"

#include <map>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/html_page.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::plan {
namespace {

using ir::Op, ir::Section;

std::string_view colour_of(Section section) {
  switch (section) {
    case Section::Init: return "init";
    case Section::Fwd:
    case Section::Loss: return "forward";
    case Section::Bwd: return "backward";
    default: return "optimizer";
  }
}

std::string name_of(const std::vector<const Op*>& ops) {
  const Op* arithmetic = cost::arithmetic_op(ops);
  const Op& op = arithmetic ? *arithmetic : *ops.front();
  return ops.size() > 1 ? concat(ir::name_of(op), " and ", ops.size() - 1, " more") : ir::name_of(op);
}

class PageData {
 public:
  explicit PageData(const StepPlan& plan) : plan_(plan), kernels_(cost::kernels_of(plan.graph).ops) {
    for (size_t i = 0; i < plan.graph.ops().size(); ++i) position_[plan.graph.ops()[i].get()] = static_cast<int64_t>(i);
  }

  std::string json(const std::string& title) {
    std::vector<std::string> lanes = {json_quoted("compute")};
    for (const CommLane& lane : plan_.lanes) lanes.push_back(json_quoted(plan::name_of(lane)));
    std::string text = concat("{\"title\":", json_quoted(title), ",\"target\":", json_quoted(plan_.target.name),
                              ",\"hash\":", json_quoted(hex(hash(plan_))), ",\"ops\":", plan_.graph.ops().size(),
                              ",\"edgeCount\":", plan_.edges.size(), ",\"peak\":", plan_.memory.peak(),
                              ",\"live\":", plan_.memory.live_bytes, ",\"peakAt\":", plan_.memory.peak_position,
                              ",\n\"lanes\":[", join(lanes, ","), "],\n\"workspaces\":[");
    for (size_t i = 0; i < plan_.memory.workspaces.size(); ++i)
      text += concat(i > 0 ? "," : "", plan_.memory.workspaces[i]);
    text += concat("],\n\"tasks\":[", tasks(), "],\n\"edges\":[", edges(), "],\n\"regions\":[", regions(),
                   "],\n\"buffers\":[", buffers(), "],\n\"strings\":[");
    return text + join(strings_, ",") + "]}";
  }

 private:
  // [lane, number, first position, last position, name, module, colour]; of a collective from its start to its wait.
  std::string tasks() {
    std::vector<std::string> rows;
    for (size_t k = 0; k < kernels_.size(); ++k) {
      const auto& ops = kernels_[k];
      rows.push_back(row(0, k, position_.at(ops.front()), position_.at(ops.back()), name_of(ops), *ops.front(),
                         colour_of(ops.front()->section)));
    }
    std::unordered_map<const Op*, int64_t> waited;
    for (const auto& op : plan_.graph.ops())
      if (ir::is_wait(*op)) waited[op->operands[0]->producer()] = position_.at(op.get());
    for (size_t lane = 0; lane < plan_.lanes.size(); ++lane)
      for (size_t i = 0; i < plan_.lanes[lane].collectives.size(); ++i) {
        const Op& op = *plan_.lanes[lane].collectives[i];
        const int64_t begin = position_.at(&op);
        const auto wait = waited.find(&op);
        rows.push_back(row(lane + 1, i, begin, wait == waited.end() ? begin : wait->second, ir::name_of(op), op,
                           ir::collective_kind(op)));
      }
    return join(rows, ",\n");
  }
  std::string row(size_t lane, size_t number, int64_t first, int64_t last, const std::string& name, const Op& op,
                  std::string_view colour) {
    return concat("[", lane, ",", number, ",", first, ",", last, ",", string(name), ",", string(op.module_path), ",",
                  string(std::string(colour)), "]");
  }
  std::string edges() const {
    std::vector<std::string> rows;
    for (const Edge& e : plan_.edges)
      rows.push_back(concat("[", e.from.lane, ",", e.from.number, ",", e.to.lane, ",", e.to.number, "]"));
    return join(rows, ",");
  }
  std::string regions() const {
    std::vector<std::string> rows;
    for (size_t r = 0; r < kRegions; ++r)
      rows.push_back(
          concat("[", json_quoted(to_string(static_cast<Region>(r))), ",", plan_.memory.region_bytes[r], "]"));
    return join(rows, ",");
  }
  // [region, offset, bytes, first, last, name, module, colour]
  std::string buffers() {
    std::vector<std::string> rows;
    for (const auto* list : {&plan_.memory.state, &plan_.memory.buffers})
      for (const Buffer& b : *list) {
        const Op& op = *b.value->producer();
        const std::string colour(ir::is_collective(op)         ? ir::collective_kind(op)
                                 : list == &plan_.memory.state ? "init"
                                                               : colour_of(op.section));
        rows.push_back(concat("[", static_cast<size_t>(b.region), ",", b.offset, ",", b.bytes, ",", b.first, ",",
                              b.last, ",", string(concat('%', b.value->name(), " of ", op.opcode)), ",",
                              string(op.module_path), ",", string(colour), "]"));
      }
    return join(rows, ",\n");
  }
  size_t string(const std::string& text) {
    const auto [place, fresh] = number_.try_emplace(text, strings_.size());
    if (fresh) strings_.push_back(json_quoted(text));
    return place->second;
  }

  const StepPlan& plan_;
  const std::vector<std::vector<const Op*>> kernels_;
  std::unordered_map<const Op*, int64_t> position_;
  std::map<std::string, size_t> number_;
  std::vector<std::string> strings_;  // quoted
};

}  // namespace

std::string plan_page(const StepPlan& plan, const std::string& title) {
  return fill_page(plan_page_frame(), PageData(plan).json(title));
}

}  // namespace sfsdp::plan

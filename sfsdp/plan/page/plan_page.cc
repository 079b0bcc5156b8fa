// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/page/plan_page.h"

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
    std::vector<std::string> lanes = {"compute"};
    for (const CommLane& lane : plan_.lanes) lanes.push_back(plan::name_of(lane));
    const std::string drawn = tasks(), placed = buffers();
    return concat(
        "{\"title\":", json_quoted(title), ",\"target\":", json_quoted(plan_.target.name),
        ",\"hash\":", json_quoted(hex(hash(plan_))), ",\"ops\":", plan_.graph.ops().size(),
        ",\"edgeCount\":", plan_.edges.size(), ",\"peak\":", plan_.memory.peak(), ",\"live\":", plan_.memory.live_bytes,
        ",\"peakAt\":", plan_.memory.peak_position, ",\n\"lanes\":", page_list(lanes, json_quoted),
        ",\n\"workspaces\":", page_list(plan_.memory.workspaces, [](int64_t bytes) { return std::to_string(bytes); }),
        ",\n\"tasks\":", drawn, ",\n\"edges\":", edges(), ",\n\"regions\":", regions(), ",\n\"buffers\":", placed,
        ",\n\"strings\":", strings_.json(), "}");
  }

 private:
  static std::string as_is(const std::string& row) { return row; }

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
    return page_list(rows, as_is);
  }
  std::string row(size_t lane, size_t number, int64_t first, int64_t last, const std::string& name, const Op& op,
                  std::string_view colour) {
    return concat("[", lane, ",", number, ",", first, ",", last, ",", strings_.add(name), ",",
                  strings_.add(op.module_path), ",", strings_.add(std::string(colour)), "]");
  }
  std::string edges() const {
    return page_list(plan_.edges, [](const Edge& e) {
      return concat("[", e.from.lane, ",", e.from.number, ",", e.to.lane, ",", e.to.number, "]");
    });
  }
  std::string regions() const {
    std::vector<std::string> rows;
    for (size_t r = 0; r < kRegions; ++r)
      rows.push_back(
          concat("[", json_quoted(to_string(static_cast<Region>(r))), ",", plan_.memory.region_bytes[r], "]"));
    return page_list(rows, as_is);
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
                              b.last, ",", strings_.add(concat('%', b.value->name(), " of ", op.opcode)), ",",
                              strings_.add(op.module_path), ",", strings_.add(colour), "]"));
      }
    return page_list(rows, as_is);
  }

  const StepPlan& plan_;
  const std::vector<std::vector<const Op*>> kernels_;
  std::unordered_map<const Op*, int64_t> position_;
  PageStrings strings_;
};

}  // namespace

std::string plan_page(const StepPlan& plan, const std::string& title) {
  return html_page(plan_page_part(), PageData(plan).json(title));
}

}  // namespace sfsdp::plan

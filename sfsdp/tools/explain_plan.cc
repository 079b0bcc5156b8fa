// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/explain_plan.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/passes/fuse/grouping.h"
#include "sfsdp/plan/in_place.h"

namespace sfsdp::tools {
namespace {

using ir::Op;

constexpr size_t kExamples = 3;
constexpr std::string_view kOtherOptions = "the rule would join them: other passes or options made these kernels";

// "" or its module: "layers.3" has "layers.3.attention", not "layers.30".
bool is_below(std::string_view module, const std::string& path) {
  return path.empty() || module == path || module.starts_with(path + ".");
}

std::string place_of(const Op& op, const ir::Value* result) {
  return concat(op.opcode, result ? concat(" %", result->name()) : "", op.module_path.empty() ? "" : " at ",
                op.module_path);
}
std::string place_of(const Op& op) { return place_of(op, op.results().empty() ? nullptr : op.result()); }

// Reasons with how often each was given, and the first examples.
class Reasons {
 public:
  void add(std::string_view why, const std::string& example) {
    auto& [count, examples] = by_reason_[std::string(why)];
    if (++count <= kExamples) examples.push_back(example);
    ++all_;
  }
  void print(std::ostream& out, const std::string& title) const {
    out << title << ": " << all_ << '\n';
    std::vector<std::pair<size_t, std::string>> order;  // most first, then by name
    for (const auto& [why, of] : by_reason_) order.emplace_back(all_ - of.first, why);
    std::ranges::sort(order);
    for (const auto& [rest, why] : order) {
      const auto& [count, examples] = by_reason_.at(why);
      out << "  " << count << ": " << why << '\n';
      for (const std::string& example : examples) out << "      " << example << '\n';
    }
  }

 private:
  std::map<std::string, std::pair<size_t, std::vector<std::string>>> by_reason_;
  size_t all_ = 0;
};

void explain_kernels(const plan::StepPlan& plan, const std::string& path, std::ostream& out) {
  const auto& ops = plan.graph.ops();
  const cost::Kernels kernels = cost::kernels_of(plan.graph);
  std::map<const Op*, int> kernel_of;
  for (size_t i = 0; i < ops.size(); ++i) kernel_of[ops[i].get()] = kernels.of[i];
  const bool fused = std::ranges::any_of(ops, [](const auto& op) { return op->has_attr("kernel"); });
  std::vector<passes::Refusal> refusals;
  const passes::Grouping grouping(plan.graph, fused ? passes::FuseScope::All : passes::FuseScope::None, &refusals);
  Reasons reasons;
  std::set<std::pair<int, int>> told;  // reader's kernel, maker's
  const auto tell = [&](const Op& op, const Op& other, std::string_view why) {
    const int own = kernel_of.at(&op), from = kernel_of.at(&other);
    if (own != from && is_below(op.module_path, path) && told.emplace(own, from).second)
      reasons.add(why, concat(place_of(op), ", apart from ", place_of(other)));
  };
  for (const passes::Refusal& r : refusals) tell(*r.op, *r.other, to_string(r.why));
  for (const passes::Kernel& kernel : grouping.kernels())
    for (const Op* op : kernel.ops) tell(*op, *kernel.ops[0], kOtherOptions);
  reasons.print(out, "Pairs of kernels that read the same or one what the other makes, and were not joined");
}

void explain_places(const plan::StepPlan& plan, const std::string& path, std::ostream& out) {
  std::vector<plan::OwnMemory> own;
  plan::find_buffers(plan.graph, {.target = plan.target}, &own);
  Reasons reasons;
  for (const plan::OwnMemory& o : own)
    if (is_below(o.result->producer()->module_path, path))
      reasons.add(to_string(o.why), concat(place_of(*o.result->producer(), o.result), o.operand ? ", not over %" : "",
                                           o.operand ? o.operand->name() : ""));
  reasons.print(out, "Results with memory of their own, written over nothing that their kernel reads");
}

}  // namespace

void explain_plan(const plan::StepPlan& plan, const std::string& path, std::ostream& out) {
  std::vector<std::string> modules;
  for (const auto& op : plan.graph.ops()) modules.push_back(op->module_path);
  if (std::ranges::none_of(modules, [&](const std::string& module) { return is_below(module, path); }))
    throw UserError(
        concat("--explain ", path, " is the path of no op\n  expected a module path", did_you_mean(path, modules)));
  explain_kernels(plan, path, out);
  explain_places(plan, path, out);
}

}  // namespace sfsdp::tools

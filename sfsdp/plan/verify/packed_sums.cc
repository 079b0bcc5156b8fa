// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/packed_sums.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"

namespace sfsdp::plan {
namespace {

using ir::Op, ir::Value;
using Integers = std::vector<int64_t>;

std::string error(const Op& op, const std::string& what, const std::string& cure) {
  return concat(what, "\n    ", ir::print(op), "\n  ", cure);
}

// Element i of the result is made of element i of the first operand, or of those of all ranks.
bool keeps_places(const Op& op) {
  return op.is("cast", "wait", "accumulate", "mul_scalar") || ir::collective_kind(op) == "all_reduce";
}

class Checker {
 public:
  explicit Checker(const ir::Graph& graph) : graph_(graph) {
    for (const auto& op : graph.ops())
      if (op->is("param")) params_.emplace(op->attr<std::string>("name"), op.get());
  }

  std::string check() {
    for (const auto& op : graph_.ops())
      if (op->is("gradient"))
        if (std::string wrong = visit(*op); !wrong.empty()) return wrong;
    for (const auto& pack : graph_.ops())
      if (const auto found = readers_.find(pack.get()); found != readers_.end())
        for (size_t i = 0; i < found->second.size(); ++i)
          if (!found->second[i])
            return error(*pack, concat('%', pack->operands[i]->name(), " is summed, and no gradient reads the sum"),
                         "expected a view of it, and a gradient of that");
    return "";
  }

 private:
  // Where a gradient reads a sum of several: which of them.
  std::string visit(const Op& gradient) {
    const Value* value = gradient.operands[0];
    while (keeps_places(*value->producer())) value = value->producer()->operands[0];
    const Op& view = *value->producer();
    if (!view.is("view") || !view.has_attr("offset")) return "";
    value = view.operands[0];
    while (keeps_places(*value->producer())) value = value->producer()->operands[0];
    const Op& pack = *value->producer();
    if (!pack.is("pack") || pack.has_attr("ranks")) return "";
    const auto param = params_.find(gradient.attr<std::string>("param"));
    if (param == params_.end() || !param->second->has_attr("members")) return "";  // stored one by one
    const auto& offsets = pack.attr<Integers>("offsets");
    const auto place = std::ranges::find(offsets, view.attr<int64_t>("offset"));
    const auto part = static_cast<size_t>(place - offsets.begin());
    if (place == offsets.end() || pack.operands[part]->type().numel() != view.result()->type().numel())
      return error(view, concat("no operand of %", pack.result()->name(), " lies there"),
                   "expected the whole range of one gradient");
    if (std::ranges::count(pack.operands, pack.operands[part]) > 1)
      return error(pack, concat('%', pack.operands[part]->name(), " is summed twice"), "expected each gradient once");
    std::vector<const Op*>& readers = readers_.emplace(&pack, pack.operands.size()).first->second;
    if (const Op* other = std::exchange(readers[part], &gradient))
      return error(gradient, concat("it is of the sum that %", other->result()->name(), " is of"),
                   "expected a sum for each");
    return check_source(gradient, *param->second, pack.operands[part]);
  }

  // What one rank of data parallelism and tensor parallelism has made, side by side, of the bucket's members.
  static std::string check_source(const Op& gradient, const Op& param, const Value* value) {
    while (keeps_places(*value->producer()) || ir::collective_kind(*value->producer()) == "reduce_scatter")
      value = value->producer()->operands[0];
    const Op& pack = *value->producer();
    const auto& unit = param.attr<std::string>("unit");
    if (!pack.is("pack") || pack.module_path != unit ||
        pack.attr<Integers>("offsets") != param.attr<Integers>("offsets"))
      return error(
          gradient, concat("it is the sum of %", value->name(), ", made at ", pack.module_path),
          concat("expected what is packed of the members of ", param.attr<std::string>("name"), ", at ", unit));
    return "";
  }

  const ir::Graph& graph_;
  std::unordered_map<std::string, const Op*> params_;
  std::unordered_map<const Op*, std::vector<const Op*>> readers_;  // by buffer that is summed: gradient ops, by operand
};

}  // namespace

std::string check_packed_sums(const ir::Graph& graph) { return Checker(graph).check(); }

}  // namespace sfsdp::plan

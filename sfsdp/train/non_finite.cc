// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/non_finite.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"

namespace sfsdp::train {
namespace {

// "log" of aten.log and aten.log.out.
std::string_view base_name(const ir::Op& op) {
  std::string_view name = op.opcode;
  if (ir::is_aten(name)) name.remove_prefix(std::string_view("aten.").size());
  name = name.substr(0, name.find('.'));
  while (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Puts values where the program says: an infinity there is what it wants.
bool fills(const ir::Op& op) {
  return op.is("constant", "scalar") ||
         is_one_of(base_name(op), {"full", "full_like", "new_full", "fill", "scalar_tensor", "masked_fill", "where"});
}

// A query that sees none of one rank's keys has -inf for the logarithm of their sum.
bool may_see_no_key(const ir::Op& op) { return op.is("sdpa") && op.has_attr("shift"); }

// A rank's rows of experts stand in front of memory that products leave as it was. What is not finite in the rows is seen where they
// come together again.
bool holds_rows_before_garbage(const ir::Op& op) {
  const bool zeros_after = op.is("own_rows") || ir::collective_kind(op) == "all_to_all_v";
  return !zeros_after && !op.results().empty() &&
         std::ranges::any_of(op.result()->type().placements,
                             [](const auto& p) { return p.placement.kind == ir::Placement::Kind::Rows; });
}

// Gives out memory that nobody has written.
bool leaves_garbage(const ir::Op& op) {
  if (holds_rows_before_garbage(op)) return true;
  return is_one_of(base_name(op), {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"});
}

// Whether this holds for an operand whose counts are known.
bool any_operand(const ir::Op& op, const std::map<const ir::Value*, ValueCounts>& operands,
                 bool (*holds)(const ValueCounts&)) {
  return std::ranges::any_of(op.operands, [&](const ir::Value* value) {
    const auto found = operands.find(value);
    return found != operands.end() && holds(found->second);
  });
}

}  // namespace

NonFiniteWatch::NonFiniteWatch(const ir::Graph& graph) {
  for (const auto& op : graph.ops()) read_.insert(op->operands.begin(), op->operands.end());
  read_.insert(graph.outputs.begin(), graph.outputs.end());
  for (const ir::Carry& carry : graph.carries) read_.insert(carry.next);
}

void NonFiniteWatch::see(const ir::Op& op, std::span<const std::optional<ValueCounts>> results) {
  const int64_t number = seen_++;
  if (fault_ || leaves_garbage(op)) return;
  unsigned allowed = fills(op) ? kPlus | kMinus : may_see_no_key(op) ? unsigned{kMinus} : 0;
  for (const ir::Value* operand : op.operands)
    if (const auto found = intended_.find(operand); found != intended_.end()) allowed |= found->second;
  for (size_t i = 0; i < results.size(); ++i) {
    const ir::Value* value = op.result(static_cast<int>(i));
    intended_.erase(value);  // of the micro-batch before
    if (!results[i] || results[i]->not_finite() == 0 || !read_.contains(value)) continue;
    const ValueCounts& counts = *results[i];
    const unsigned has = (counts.plus_inf > 0 ? kPlus : 0u) | (counts.minus_inf > 0 ? kMinus : 0u);
    if (counts.nan == 0 && (has & ~allowed) == 0) {
      intended_[value] = has;
      continue;
    }
    fault_ = Fault{number, &op, value, counts};
    return;
  }
}

std::string number_text(double value) { return std::isnan(value) ? "nan" : concat(value); }

std::string to_string(const ValueCounts& counts) {
  const int64_t bad = counts.not_finite();
  const std::string range =
      concat("from ", counts.min, " to ", counts.max, ", ", counts.mean_abs, " on average without sign");
  if (bad == 0) return concat(counts.numel, " finite elements ", range);
  std::vector<std::string> kinds;
  if (counts.nan > 0) kinds.push_back(concat(counts.nan, " nan"));
  if (counts.plus_inf > 0) kinds.push_back(concat(counts.plus_inf, " inf"));
  if (counts.minus_inf > 0) kinds.push_back(concat(counts.minus_inf, " -inf"));
  return concat(bad, " of ", counts.numel, " elements are not finite (", join(kinds, ", "), "), the first is element ",
                counts.first, bad == counts.numel ? "" : concat("; the others are ", range));
}

std::string cure_of(const ir::Op& op, const std::map<const ir::Value*, ValueCounts>& operands) {
  const std::string_view name = base_name(op);
  const auto has_zero = [](const ValueCounts& c) { return c.min <= 0 && c.max >= 0; };
  const auto has_negative_or_zero = [](const ValueCounts& c) { return c.min <= 0; };
  const auto has_infinity = [](const ValueCounts& c) { return c.not_finite() > 0; };
  if (op.is("param", "state"))
    return "it was not finite before this step: start from an earlier checkpoint, with a lower optimizer.lr";
  if (op.is("input")) return "the batch holds it: look at the data of this step";
  if (any_operand(op, operands, has_infinity))
    return "infinities of a mask meet in it: look for a row that is masked as a whole, and give it one element";
  if (is_one_of(name, {"log", "log2", "log10", "log1p", "xlogy"}) && any_operand(op, operands, has_negative_or_zero))
    return "the logarithm of 0 or less: clamp what it is taken of, or use log_softmax";
  if (is_one_of(name, {"sqrt", "rsqrt", "pow"}) && any_operand(op, operands, has_negative_or_zero))
    return "a root or power of 0 or less: add an epsilon to what it is taken of";
  if (is_one_of(name, {"div", "reciprocal", "norm", "linalg_vector_norm"}) && any_operand(op, operands, has_zero))
    return "a division by 0: add an epsilon to the divisor";
  if (is_one_of(name, {"exp", "exp2", "expm1", "sinh", "cosh"}))
    return "an exponential of a large number: subtract the maximum first, as log_softmax does";
  if (ir::is_collective(op) || op.is("accumulate", "add_into"))
    return "a sum of finite parts is too large for its dtype: set training.mixed_precision_reduce = float32, or lower"
           " optimizer.lr";
  if (!op.results().empty() && op.result()->type().dtype == ir::DType::f16)
    return "float16 ends at 65504: set training.mixed_precision_param = bfloat16";
  return "its operands are too large: lower optimizer.lr, raise lr_scheduler.warmup_steps, or look at the batch of this"
         " step";
}

std::string describe(const NonFiniteWatch::Fault& fault, const std::map<const ir::Value*, ValueCounts>& operands,
                     int64_t micro_batch) {
  const ir::Op& op = *fault.op;
  std::string text = concat(ir::print(op), "\n");
  text.erase(0, text.find_first_not_of(' '));
  text = concat(op.opcode, " at ", op.module_path.empty() ? "no module" : op.module_path, ", in section ",
                ir::to_string(op.section), ir::is_repeated(op.section) ? concat(" of micro-batch ", micro_batch) : "",
                op.bwd_of ? concat(", backward of ", op.bwd_of->opcode) : "", ":\n    ", text);
  text += concat("    %", fault.value->name(), ": ", to_string(fault.counts), "\n");
  for (const ir::Value* operand : op.operands)
    if (const auto found = operands.find(operand); found != operands.end())
      text += concat("    %", operand->name(), ": ", to_string(found->second), "\n");
  return concat(text, "  ", cure_of(op, operands));
}

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/by_rank.h"

#include <algorithm>
#include <numeric>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/lexer.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/verifier.h"

namespace sfsdp::ir {
namespace {

// A text that is not affine is refused; of sums of such numbers nothing overflows.
constexpr int64_t kMostStep = kMaxBytes / (int64_t{1} << 24);

// nullptr: the op has no attribute that may be affine, or it is a number.
const std::pair<std::string, Attr>* affine_text(const Op& op) {
  for (const auto& entry : op.attrs)
    if ((entry.first == "offset" && op.is("view")) || (entry.first == "start" && op.is("narrow")))
      if (std::holds_alternative<std::string>(entry.second)) return &entry;
  return nullptr;
}

const std::vector<int64_t>* row_counts(const Op& op) { return op.find_attr<std::vector<int64_t>>("row_counts"); }

std::vector<int64_t> counted_operands(const Op& op) {
  const auto* counted = op.find_attr<std::vector<int64_t>>("counted");
  return counted ? *counted : std::vector<int64_t>();
}

// Rows of what is counted, as the types have them.
int64_t most_rows(const Op& op) {
  const auto counted = counted_operands(op);
  const Type& type = counted.empty() ? op.result()->type() : op.operands[static_cast<size_t>(counted[0])]->type();
  return type.dims.empty() ? 0 : type.dims[0].size;
}

// What two ops must share for one to read the counted rows of the other.
std::string key_of(const Op& op) {
  if (is_counted_in_memory(op)) return concat('%', op.operands.back()->name());
  return concat(op.attrs.at("row_counts"), " over ", op.attr<std::string>("row_axis"));
}

Diagnostic wrong(const Op& op, const std::string& what, const std::string& expected) {
  return {.where = {}, .message = concat(name_of(op), ' ', what), .detail = expected};
}

std::vector<Diagnostic> check_form(const Graph& graph, const Op& op) {
  if (const auto* text = affine_text(op)) {
    const auto affine = parse_affine(std::get<std::string>(text->second));
    if (!affine)
      return {wrong(op, concat("has ", text->first, '=', text->second),
                    "expected a number, or \"4096 + 512*dp_shard\" with axes in alphabetical order")};
    for (const auto& [axis, step] : affine->steps)
      if (!axis_size(graph, std::span(&axis, 1)))
        return {wrong(op, concat("names axis ", axis), "expected an axis of the line `graph mesh [...]`")};
  }
  if (!op.has_attr("counted") && !row_counts(op) && !op.has_attr("row_axis")) return {};
  if (is_collective(op) || is_wait(op) || op.is("loop", "when", "end", "accumulate") || is_update(op))
    return {wrong(op, "counts rows", "expected it on an op that computes; collectives and loops take whole tensors")};
  const OpRow* row = op.opcode.row();
  if (!row) return {wrong(op, "counts rows", "expected it on an op whose types are known")};
  if (row_counts(op) && !op.find_attr<std::string>("row_axis"))
    return {wrong(op, "needs row_axis=", "expected a mesh axis")};
  if (op.has_attr("row_axis") && !row_counts(op))
    return {wrong(op, "needs row_counts=", "expected a number for each place on row_axis")};
  const bool in_memory = is_counted_in_memory(op);
  const auto operands = std::ssize(op.operands) - (in_memory ? 1 : 0);
  for (const int64_t k : counted_operands(op))
    if (k < 0 || k >= operands || !op.operands[static_cast<size_t>(k)] ||
        op.operands[static_cast<size_t>(k)]->type().dims.empty() ||
        op.operands[static_cast<size_t>(k)]->type().dims[0].size != most_rows(op))
      return {wrong(
          op, concat("has counted=", op.attrs.at("counted")),
          concat("expected operands with as many rows, by their number, below ", std::max<int64_t>(operands, 0)))};
  if (counted_operands(op).empty() != is_root(op))
    return {
        wrong(op, concat("has ", op.has_attr("counted") ? "counted=" : "no counted="),
              "expected the numbers of the operands that are counted; what the graph is given has row_counts= alone")};
  if (in_memory) {
    const Type& count = op.operands.back()->type();
    if (count.kind != Type::Kind::Tensor || !count.dims.empty() ||
        (count.dtype != DType::i64 && count.dtype != DType::i32))
      return {wrong(op, concat("counts rows by %", op.operands.back()->name()),
                    concat("expected a number as its last operand, i64[] or i32[], got ", count))};
    return {};
  }
  const auto& axis = op.attr<std::string>("row_axis");
  const auto size = axis_size(graph, std::span(&axis, 1));
  const auto& counts = *row_counts(op);
  const int64_t most = most_rows(op);
  if (!size || std::ssize(counts) != *size || *std::ranges::max_element(counts) != most ||
      *std::ranges::min_element(counts) < 0)
    return {wrong(op, concat("has row_counts=", op.attrs.at("row_counts")),
                  concat("expected a number for each place on ", axis, ", 0 to ", most, ", the largest ", most))};
  return {};
}

// All coordinates on the axes, one after the other.
template <class Visit>
void for_each_place(const Graph& graph, const std::vector<std::string>& axes, const Visit& visit) {
  Coordinates at;
  for (const std::string& axis : axes) at[axis] = 0;
  for (bool more = true; more;) {
    if (!visit(at)) return;
    more = false;
    for (auto& [axis, place] : at) {
      more = ++place < axis_size(graph, std::span(&axis, 1)).value_or(1);
      if (more) break;
      place = 0;
    }
  }
}

}  // namespace

int64_t Affine::at(const Coordinates& coordinates) const {
  int64_t sum = base;
  for (const auto& [axis, step] : steps)
    if (const auto found = coordinates.find(axis); found != coordinates.end()) sum += step * found->second;
  return sum;
}

std::optional<Affine> parse_affine(std::string_view text) {
  Affine affine;
  const std::vector<std::string> words = split(text, ' ');
  const auto base = words.empty() ? std::nullopt : parse_int(words[0]);
  if (!base) return std::nullopt;
  affine.base = *base;
  for (size_t i = 1; i + 1 < words.size(); i += 2) {
    const size_t star = words[i + 1].find('*');
    const auto step = star == std::string::npos ? std::nullopt : parse_int(words[i + 1].substr(0, star));
    if (!step) return std::nullopt;
    affine.steps.emplace_back(words[i + 1].substr(star + 1), *step);
  }
  const auto is_number = [](int64_t n) { return n >= -kMostStep && n <= kMostStep; };
  const bool sound =
      is_number(affine.base) && !affine.steps.empty() &&
      std::ranges::all_of(affine.steps,
                          [&](const auto& s) { return s.second != 0 && is_number(s.second) && is_word(s.first); }) &&
      std::ranges::is_sorted(affine.steps, std::ranges::less_equal(), [](const auto& s) { return s.first; });
  if (!sound || to_string(affine) != text) return std::nullopt;
  return affine;
}

std::string to_string(const Affine& affine) {
  std::string text = std::to_string(affine.base);
  for (const auto& [axis, step] : affine.steps) text += concat(" + ", step, '*', axis);
  return text;
}

bool is_by_rank(const Op& op) { return op.has_attr("counted") || op.has_attr("row_counts") || affine_text(op); }

bool is_counted_in_memory(const Op& op) {
  return op.has_attr("counted") && !op.has_attr("row_counts") && !op.operands.empty();
}

std::vector<std::string> coordinate_axes(const Op& op) {
  std::vector<std::string> axes;
  if (const auto* text = affine_text(op))
    if (const auto affine = parse_affine(std::get<std::string>(text->second)))
      for (const auto& [axis, step] : affine->steps) axes.push_back(axis);
  if (const auto* axis = op.find_attr<std::string>("row_axis")) axes.push_back(*axis);
  if (has_flag(op, kByCoordinate))
    for (const std::string& axis : axes_of(op).value_or(std::vector<std::string>())) axes.push_back(axis);
  std::ranges::sort(axes);
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  return axes;
}

RankOp::RankOp(const Graph& graph, const Op& op, const Coordinates& coordinates, int64_t rows) {
  graph_.mesh = graph.mesh;
  graph_.view = graph.view;
  if (const auto* counts = row_counts(op)) {
    const auto place = coordinates.find(op.attr<std::string>("row_axis"));
    rows_ = counts->at(place == coordinates.end() ? 0 : static_cast<size_t>(place->second));
  } else if (is_counted_in_memory(op)) {
    rows_ = rows;
  }
  std::vector<Value*> operands;
  const size_t count = op.operands.size() - (is_counted_in_memory(op) ? 1 : 0);
  for (size_t k = 0; k < count; ++k) {
    if (!op.operands[k]) {
      operands.push_back(nullptr);
      continue;
    }
    Type type = op.operands[k]->type();
    if (rows_ && std::ranges::count(counted_operands(op), static_cast<int64_t>(k)) > 0) type.dims[0].size = *rows_;
    operands.push_back(graph_.add("input", {}, {{op.operands[k]->name(), std::move(type)}})->result());
  }
  std::vector<Graph::NewResult> results;
  for (const auto& result : op.results()) results.push_back({result->name(), result->type()});
  op_ = graph_.add(op.opcode, std::move(operands), std::move(results));
  op_->operand_lists = op.operand_lists;
  op_->section = op.section;
  op_->module_path = op.module_path;
  for (const auto& [name, value] : op.attrs)
    if (name != "counted" && name != "row_counts" && name != "row_axis") op_->attrs[name] = value;
  if (const auto* text = affine_text(op))
    if (const auto affine = parse_affine(std::get<std::string>(text->second)))
      op_->attrs[text->first] = affine->at(coordinates);
  if (!rows_) return;
  if (is_root(op)) {
    cut_results(op, 1);
    return;
  }
  // At most one choice fits the rule where rows are fewer than the types say; where they are as many, all are the same.
  const uint32_t choices = uint32_t{1} << std::min<size_t>(op.results().size(), 8);
  for (uint32_t which = choices; which-- > 0;) {
    cut_results(op, which);
    if (check_rule_of(graph_, *op_).empty()) return;
  }
}

void RankOp::cut_results(const Op& op, uint32_t which) {
  for (size_t r = 0; r < op.results().size(); ++r) {
    Type type = op.results()[r]->type();
    const bool fits = !type.dims.empty() && type.dims[0].size == most_rows(op);
    if ((which >> r & 1) != 0 && fits) type.dims[0].size = *rows_;
    op_->result(static_cast<int>(r))->set_type(std::move(type));
  }
}

bool has_counted_rows(const Graph& graph, const Value& value) {
  const Op& op = *value.producer();
  if ((!op.has_attr("counted") && !row_counts(op)) || value.type().dims.empty() || most_rows(op) < 1) return false;
  if (is_root(op)) return true;
  const auto* axis = op.find_attr<std::string>("row_axis");
  if (axis) {
    const auto& counts = *row_counts(op);
    const auto few = std::ranges::find_if(counts, [&](int64_t n) { return n < most_rows(op); });
    if (few == counts.end()) return false;
    const RankOp local(graph, op, {{*axis, few - counts.begin()}});
    return local.op().result(value.result_index())->type().dims[0].size != value.type().dims[0].size;
  }
  const RankOp local(graph, op, {}, most_rows(op) - 1);
  return local.op().result(value.result_index())->type().dims[0].size != value.type().dims[0].size;
}

std::vector<Diagnostic> check_by_rank(const Graph& graph, const Op& op) {
  std::vector<Diagnostic> found = check_form(graph, op);
  if (!found.empty()) return found;
  const auto check = [&](const Coordinates& at, int64_t rows, const std::string& where) {
    for (Diagnostic& d : check_rule_of(graph, RankOp(graph, op, at, rows).op())) {
      d.message += where;
      found.push_back(std::move(d));
    }
    return found.empty();
  };
  for_each_place(graph, coordinate_axes(op), [&](const Coordinates& at) {
    std::string where = at.empty() ? "" : ", on the rank at";
    for (const auto& [axis, place] : at) where += concat(' ', axis, '=', place);
    if (!is_counted_in_memory(op)) return check(at, 0, where);
    const int64_t most = most_rows(op);
    return check(at, most, where) && check(at, most / 2, concat(where, ", with ", most / 2, " rows"));
  });
  return found;
}

std::vector<std::pair<const Op*, Diagnostic>> check_counted(const Graph& graph) {
  std::vector<std::pair<const Op*, Diagnostic>> found;
  std::map<const Value*, std::string> keys;  // of what has counted rows
  const auto key = [&](const Value* value) {
    const auto at = keys.find(value);
    return at == keys.end() ? std::string() : at->second;
  };
  for (const auto& op : graph.ops()) {
    const auto counted = counted_operands(*op);
    for (size_t k = 0; k < op->operands.size(); ++k) {
      const std::string needed = key(op->operands[k]);
      if (needed.empty()) continue;
      if (std::ranges::count(counted, static_cast<int64_t>(k)) > 0 && key_of(*op) == needed) continue;
      found.emplace_back(op.get(),
                         wrong(*op, concat("reads rows of %", op->operands[k]->name(), " that nobody has made"),
                               concat("expected it counted, by ", needed)));
    }
    if (!op->has_attr("counted") && !row_counts(*op)) continue;
    for (const auto& result : op->results())
      if (has_counted_rows(graph, *result)) keys[result.get()] = key_of(*op);
  }
  for (const Value* output : graph.outputs)
    if (!key(output).empty())
      found.emplace_back(output->producer(), wrong(*output->producer(), "is returned, and has counted rows",
                                                   "expected a tensor that is whole"));
  for (const Carry& carry : graph.carries)
    if (key(carry.current) != key(carry.next))
      found.emplace_back(
          carry.next->producer(),
          wrong(*carry.next->producer(), concat("is carried as %", carry.current->name(), ", with other rows"),
                "expected row_counts= to be the same"));
  return found;
}

}  // namespace sfsdp::ir

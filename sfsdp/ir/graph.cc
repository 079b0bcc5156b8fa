// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/graph.h"

#include <algorithm>
#include <array>

#include "sfsdp/base/check.h"

namespace sfsdp::ir {
namespace {

// Value names are [A-Za-z0-9_.]+, so that they need no quotes in the text form.
std::string to_name(std::string_view hint) {
  std::string name(hint);
  for (char& c : name) {
    const bool legal =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
    if (!legal) c = '_';
  }
  return name;
}

std::string describe(const Op& op) {
  if (op.results().empty()) return op.opcode.str();
  return concat('%', op.result()->name(), " = ", op.opcode);
}

}  // namespace

std::string_view to_string(Section section) {
  constexpr std::array<std::string_view, 6> kNames = {"init", "fwd", "loss", "bwd", "clip", "opt"};  // in enum order
  return kNames.at(static_cast<size_t>(section));
}

std::string name_of(const Op& op) {
  return op.results().empty() ? op.opcode.str() : concat(op.opcode, " %", op.result()->name());
}

std::string opcode_at(const Op& op) {
  return op.module_path.empty() ? op.opcode.str() : concat(op.opcode, " at ", op.module_path);
}

std::string_view block_of(std::string_view path) {
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) return path.substr(0, end);
    begin = end + 1;
  }
  return {};
}

void Op::refuse_attr(std::string_view key) const {
  const auto found = attrs.find(key);
  SFSDP_CHECK(found != attrs.end(), describe(*this), " has no attribute ", key);
  SFSDP_CHECK(false, describe(*this), " attribute ", key, " is of another kind: ", found->second);
}

Graph Graph::clone() const {
  Graph copy;
  copy.mesh = mesh;
  copy.view = view;
  copy.micro_batches = micro_batches;
  copy.next_number_ = next_number_;
  copy.next_suffix_ = next_suffix_;
  copy.by_name_.reserve(by_name_.size());
  copy.ops_.reserve(ops_.size());
  std::vector<std::pair<const Value*, Value*>> values(next_id_);  // old and new, by the old one's id
  std::vector<std::pair<const Op*, Op*>> twins(next_id_);
  for (const auto& op : ops_) {
    auto twin = std::make_unique<Op>();
    twin->id_ = copy.next_id_++;
    twin->opcode = op->opcode;
    twin->operand_lists = op->operand_lists;
    twin->attrs = op->attrs;
    twin->section = op->section;
    twin->module_path = op->module_path;
    for (const auto& value : op->results_) {
      twin->results_.push_back(copy.make_value(value->name_, value->type_, twin.get(), value->result_index_));
      values[value->id()] = {value.get(), twin->results_.back().get()};
    }
    twins[op->id()] = {op.get(), twin.get()};
    copy.ops_.push_back(std::move(twin));
  }
  // Pointers in a second walk: a graph being verified may read a value above its definition.
  const auto twin_of = [&](Value* value) -> Value* {
    if (!value) return nullptr;
    const auto& [old, twin] = values.at(value->id());
    SFSDP_CHECK(old == value, "%", value->name(), " is read in a graph that it is not of");
    return twin;
  };
  for (size_t i = 0; i < ops_.size(); ++i) {
    copy.ops_[i]->operands.reserve(ops_[i]->operands.size());
    for (Value* operand : ops_[i]->operands) copy.ops_[i]->operands.push_back(twin_of(operand));
    if (const Op* forward = ops_[i]->bwd_of; forward && twins.at(forward->id()).first == forward)
      copy.ops_[i]->bwd_of = twins[forward->id()].second;
  }
  for (Value* output : outputs) copy.outputs.push_back(twin_of(output));
  for (const Carry& carry : carries) copy.carries.push_back({twin_of(carry.current), twin_of(carry.next)});
  return copy;
}

std::string Graph::unique_name(const std::string& hint) {
  std::string name = to_name(hint);
  if (name.empty()) {
    do name = std::to_string(next_number_++);
    while (by_name_.contains(name));
    return name;
  }
  if (!by_name_.contains(name)) return name;
  int64_t& suffix = next_suffix_[name];
  std::string candidate;
  do candidate = concat(name, '_', ++suffix);
  while (by_name_.contains(candidate));
  return candidate;
}

std::unique_ptr<Value> Graph::make_value(std::string name, Type type, Op* producer, int index) {
  auto value = std::make_unique<Value>();
  value->name_ = std::move(name);
  value->type_ = std::move(type);
  value->producer_ = producer;
  value->result_index_ = index;
  value->id_ = next_id_++;
  by_name_.emplace(value->name_, value.get());
  return value;
}

Op* Graph::add(Opcode opcode, std::vector<Value*> operands, std::vector<NewResult> results, Op* before) {
  auto op = std::make_unique<Op>();
  op->id_ = next_id_++;
  op->opcode = opcode;
  op->operands = std::move(operands);
  for (NewResult& result : results)
    op->results_.push_back(
        make_value(unique_name(result.hint), std::move(result.type), op.get(), static_cast<int>(op->results_.size())));
  Op* const added = op.get();
  auto place = ops_.end();
  if (before) {
    place = std::ranges::find_if(ops_, [&](const auto& other) { return other.get() == before; });
    SFSDP_CHECK(place != ops_.end(), added->opcode, " before an op of another graph");
  }
  ops_.insert(place, std::move(op));
  return added;
}

Op* Graph::find_param(std::string_view name) const {
  for (const auto& op : ops_) {
    if (!op->is("param", "state", "input")) continue;
    if (const auto* text = op->find_attr<std::string>("name"); text && *text == name) return op.get();
  }
  return nullptr;
}

Value* Graph::find_value(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void Graph::rename(Value* value, const std::string& hint) {
  if (value->name_ == hint) return;
  by_name_.erase(value->name_);
  value->name_ = unique_name(hint);
  by_name_.emplace(value->name_, value);
}

void Graph::replace_uses(Value* from, Value* to) { replace_uses(std::map<Value*, Value*>{{from, to}}); }

void Graph::replace_uses(const std::map<Value*, Value*>& replacements) {
  std::vector<std::pair<Value*, Value*>> replaced(next_id_);
  for (const auto& [from, to] : replacements) replaced.at(from->id()) = {from, to};
  const auto replace = [&](Value*& use) {
    if (use && use->id() < replaced.size() && replaced[use->id()].first == use) use = replaced[use->id()].second;
  };
  for (const auto& op : ops_)
    for (Value*& operand : op->operands) replace(operand);
  for (Value*& output : outputs) replace(output);
  for (Carry& carry : carries) {
    replace(carry.current);
    replace(carry.next);
  }
}

void Graph::erase(Op* op) { erase(std::vector<Op*>{op}); }

void Graph::erase(const std::vector<Op*>& ops) {
  if (ops.empty()) return;
  std::vector<const Op*> dead(next_id_);
  for (const Op* op : ops) dead.at(op->id()) = op;
  const auto is_dead = [&](const Op* op) { return dead[op->id()] == op; };
  const auto is_lost = [&](const Value* value) { return value && is_dead(value->producer()); };
  const auto check_unused = [&](const Value* value, std::string_view reader) {
    SFSDP_CHECK(!is_lost(value), "erase of %", value->name(), ", still read by ", reader);
  };
  for (const auto& op : ops_) {
    if (is_dead(op.get())) continue;
    for (const Value* operand : op->operands)
      if (is_lost(operand)) check_unused(operand, describe(*op));
    // The gradient op stays valid without its note on where it came from.
    if (op->bwd_of && is_dead(op->bwd_of)) op->bwd_of = nullptr;
  }
  for (const Value* output : outputs) check_unused(output, "return");
  for (const Carry& carry : carries) {
    check_unused(carry.current, "carry");
    check_unused(carry.next, "carry");
  }
  const auto distinct = static_cast<size_t>(std::ranges::count_if(dead, [](const Op* op) { return op != nullptr; }));
  const size_t erased = std::erase_if(ops_, [&](const auto& op) {
    if (!is_dead(op.get())) return false;
    for (const auto& value : op->results_) by_name_.erase(value->name_);
    return true;
  });
  SFSDP_CHECK(erased == distinct, "erase of ", distinct, " ops, of which only ", erased, " are in the graph");
}

bool Graph::set_order(const std::vector<Op*>& order) {
  SFSDP_CHECK(order.size() == ops_.size(), "an order of ", order.size(), " ops for a graph of ", ops_.size());
  if (std::ranges::equal(order, ops_, {}, {}, [](const auto& op) { return op.get(); })) return false;
  std::vector<size_t> index(next_id_);
  for (size_t i = 0; i < ops_.size(); ++i) index[ops_[i]->id()] = i;
  std::vector<size_t> from;  // all of the order is checked before anything moves
  from.reserve(order.size());
  std::vector<bool> seen(ops_.size());
  for (const Op* op : order) {
    const size_t found = op->id() < index.size() ? index[op->id()] : 0;
    SFSDP_CHECK(ops_[found].get() == op, "an op of another graph in the new order");
    SFSDP_CHECK(!seen[found], describe(*op), " is twice in the new order");
    seen[found] = true;
    from.push_back(found);
  }
  std::vector<std::unique_ptr<Op>> reordered;
  reordered.reserve(order.size());
  for (const size_t i : from) reordered.push_back(std::move(ops_[i]));
  ops_ = std::move(reordered);
  return true;
}

}  // namespace sfsdp::ir

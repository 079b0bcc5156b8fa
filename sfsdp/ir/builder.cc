// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/builder.h"

#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::ir {

Type with_dtype(Type type, DType dtype) {
  type.dtype = dtype;
  return type;
}

Builder::Place Builder::Place::like(const Op& op) const {
  Place place = *this;
  place.section_ = op.section;
  place.module_path_ = op.module_path;
  return place;
}

Builder::Place Builder::Place::in(Section section) const {
  Place place = *this;
  place.section_ = section;
  return place;
}

Builder::Place Builder::Place::at(std::string module_path) const {
  Place place = *this;
  place.module_path_ = std::move(module_path);
  return place;
}

Op* Builder::Place::op(Opcode opcode, std::vector<Value*> operands, std::vector<Graph::NewResult> results,
                       Attrs attrs) const {
  Op* op = builder_->graph_.add(opcode, std::move(operands), std::move(results));
  op->section = section_;
  op->module_path = module_path_;
  op->attrs = std::move(attrs);
  if (anchor_ && after_) builder_->moves_.after(anchor_, {&op, 1});
  if (anchor_ && !after_) builder_->moves_.before(anchor_, {&op, 1});
  return op;
}

Value* Builder::Place::value(Opcode opcode, std::vector<Value*> operands, Type type, std::string hint,
                             Attrs attrs) const {
  return op(opcode, std::move(operands), {{std::move(hint), std::move(type)}}, std::move(attrs))->result();
}

Value* Builder::Place::cast(Value* value, DType dtype, std::string hint) const {
  if (value->type().dtype == dtype) return value;
  if (hint.empty()) hint = value->name() + ".cast";
  return this->value("cast", {value}, with_dtype(value->type(), dtype), std::move(hint));
}

Op* Builder::Place::list(Opcode opcode, std::vector<Value*> operands, Type type, std::string hint, Attrs attrs) const {
  const int count = static_cast<int>(operands.size());
  Op* made = op(opcode, std::move(operands), {{std::move(hint), std::move(type)}}, std::move(attrs));
  made->operand_lists = {{0, count}};
  return made;
}

Op* Builder::Place::again(const Op& like, std::vector<Value*> operands, std::vector<Graph::NewResult> results) const {
  Op* made = op(like.opcode, std::move(operands), std::move(results), like.attrs);
  made->operand_lists = like.operand_lists;
  return made;
}

Builder::Place Builder::before(Op* op) {
  Place place;
  place.builder_ = this;
  place.anchor_ = op;
  return place.like(*op);
}

Builder::Place Builder::after(Op* op) {
  Place place = before(op);
  place.after_ = true;
  return place;
}

Builder::Place Builder::at_end(Section section, std::string module_path) {
  Place place;
  place.builder_ = this;
  place.section_ = section;
  place.module_path_ = std::move(module_path);
  return place;
}

void Builder::take_place(Value* old, Value* value) {
  replace(old, value);
  renamed_.emplace_back(value, old->name());
}

void Builder::apply(std::string_view pass) {
  moves_.apply();
  graph_.replace_uses(replaced_);
  if (!pass.empty()) require_unread(pass);
  graph_.erase(erased_);
  for (const auto& [value, name] : renamed_) graph_.rename(value, name);  // names are free once the ops are gone
  replaced_.clear();
  renamed_.clear();
  erased_.clear();
}

void Builder::require_unread(std::string_view pass) const {
  const std::unordered_set<const Op*> gone(erased_.begin(), erased_.end());
  const auto check = [&](const Value* value, const Op* reader, const char* other) {
    if (value && gone.contains(value->producer()))
      throw UserError(concat("pass ", pass, ": %", value->name(), " is replaced, but ",
                             reader ? name_of(*reader) : other, " still reads it",
                             "\n  expected a step as data parallelism and the optimizer leave it, each parameter with"
                             " one gradient and one update"));
  };
  for (const auto& op : graph_.ops())
    if (!gone.contains(op.get()))
      for (const Value* operand : op->operands) check(operand, op.get(), "");
  for (const Value* output : graph_.outputs) check(output, nullptr, "return");
  for (const Carry& carry : graph_.carries) {
    check(carry.current, nullptr, "carry");
    check(carry.next, nullptr, "carry");
  }
}

}  // namespace sfsdp::ir

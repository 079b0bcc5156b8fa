// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/fields.h"

#include <algorithm>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train::tokenizer {

Field::Field(const JsonValue& value, std::string file, std::string path)
    : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

std::string Field::where() const { return path_.empty() ? file_ : concat(file_, ": ", path_); }

void Field::refuse(const std::string& expected) const {
  throw UserError(concat(where(), path_.empty() ? " holds " : " = ", describe(*value_), "\n  expected ", expected));
}

const std::string& Field::text() const {
  const auto* text = value_->as<std::string>();
  if (!text) refuse("a text");
  return *text;
}

bool Field::flag() const {
  const bool* flag = value_->as<bool>();
  if (!flag) refuse("true or false");
  return *flag;
}

uint64_t Field::whole(uint64_t most) const {
  const auto* number = value_->as<uint64_t>();
  if (!number || *number > most) refuse(concat("a whole number from 0 to ", most));
  return *number;
}

const JsonObject& Field::object() const {
  const auto* object = value_->as<JsonObject>();
  if (!object) refuse("an object");
  return *object;
}

std::vector<Field> Field::items() const {
  const auto* array = value_->as<JsonArray>();
  if (!array) refuse("a list");
  std::vector<Field> fields;
  fields.reserve(array->size());
  for (size_t i = 0; i < array->size(); ++i) fields.emplace_back((*array)[i], file_, concat(path_, "[", i, "]"));
  return fields;
}

Field Field::at(std::string_view key) const {
  object();
  const JsonValue* member = value_->find(key);
  if (!member) throw UserError(concat(where(), ": no ", key, "\n  expected the member ", key));
  return Field(*member, file_, path_.empty() ? std::string(key) : concat(path_, ".", key));
}

std::optional<Field> Field::find(std::string_view key) const {
  object();
  const JsonValue* member = value_->find(key);
  if (!member || member->as<JsonNull>()) return std::nullopt;
  return at(key);
}

bool Field::flag_or(std::string_view key, bool fallback) const {
  const auto member = find(key);
  return member ? member->flag() : fallback;
}

void Field::allow_only(std::initializer_list<std::string_view> keys) const {
  for (const auto& [name, value] : object()) {
    if (name == "type" || std::find(keys.begin(), keys.end(), name) != keys.end()) continue;
    std::vector<std::string> names(keys.begin(), keys.end());
    throw UserError(concat(where(), ": member ", quote_safe(name), " = ", describe(value), "\n  expected ",
                           names.empty() ? "no member but type" : concat("only ", join(names, ", ")), "; what ",
                           quote_safe(name), " would change is not known here"));
  }
}

}  // namespace sfsdp::train::tokenizer

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/json_cursor.h"

#include <limits>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/exported/printable.h"

namespace sfsdp::exported {

JsonCursor JsonCursor::member(std::string_view key) const& {
  for (const auto& [name, value] : object())
    if (name == key) return {value, this, name, -1};
  refuse(concat("no member ", key), "an object that has it");
}

std::optional<JsonCursor> JsonCursor::optional(std::string_view key) const& {
  for (const auto& [name, value] : object())
    if (name == key && !value.as<JsonNull>()) return JsonCursor(value, this, name, -1);
  return std::nullopt;
}

size_t JsonCursor::size() const { return items().size(); }

JsonCursor JsonCursor::variant(std::string& key) const& {
  const JsonObject& members = object();
  if (members.size() != 1) refuse(concat(members.size(), " members"), "one, which says what it is");
  key = members.front().first;
  return {members.front().second, this, members.front().first, -1};
}

const JsonObject& JsonCursor::object() const {
  const auto* members = value_->as<JsonObject>();
  if (!members) refuse(describe(*value_), "an object");
  return *members;
}

const JsonArray& JsonCursor::items() const {
  const auto* array = value_->as<JsonArray>();
  if (!array) refuse(describe(*value_), "an array");
  return *array;
}

const std::string& JsonCursor::text() const {
  const auto* text = value_->as<std::string>();
  if (!text) refuse(describe(*value_), "a text");
  return *text;
}

const std::string& JsonCursor::name() const {
  constexpr size_t kMaxNameBytes = 1000;
  const std::string& name = text();
  if (name.empty() || name.size() > kMaxNameBytes || !is_printable(name))
    refuse(concat(quote_safe(name), " of ", name.size(), " bytes"),
           concat("a name of 1 to ", kMaxNameBytes, " bytes without control characters"));
  return name;
}

int64_t JsonCursor::integer() const {
  if (const auto* number = value_->as<int64_t>()) return *number;
  const auto* number = value_->as<uint64_t>();
  if (!number || *number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    refuse(describe(*value_), "a whole number below 2^63");
  return static_cast<int64_t>(*number);
}

bool JsonCursor::boolean() const {
  const auto* flag = value_->as<bool>();
  if (!flag) refuse(describe(*value_), "true or false");
  return *flag;
}

double JsonCursor::number() const {
  if (const auto number = as_real(*value_)) return *number;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (const auto* text = value_->as<std::string>()) {
    if (*text == "Infinity") return kInfinity;
    if (*text == "-Infinity") return -kInfinity;
    if (*text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  }
  refuse(describe(*value_), "a number");
}

std::string JsonCursor::where() const {
  if (!outer_) return concat(key_, ": ");
  const std::string before = outer_->where();
  if (index_ >= 0) return concat(before, "[", index_, "]");
  return concat(before, before.ends_with(": ") ? "" : ".", quote_safe(key_).substr(1, quote_safe(key_).size() - 2));
}

void JsonCursor::refuse(const std::string& got, const std::string& expected) const {
  const std::string place = where();
  throw UserError(concat(place, place.ends_with(": ") ? "" : ": ", got, "\n  expected ", expected));
}

}  // namespace sfsdp::exported

// SPDX-License-Identifier: BSD-3-Clause
// An object of config.json by its keys, each of a type and a range; what else it holds is refused with file, key, got and
// expected. For hf_config*.cc.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train {

inline constexpr int64_t kMaxSize = 2147483647;  // of any one dimension
inline constexpr int64_t kMaxLayers = 100000;

// An object of the file, and how to name its keys.
class Section {
 public:
  Section(const JsonValue& object, std::string file, std::string prefix)
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {
    if (!object.as<JsonObject>()) refuse("", describe(object), "an object");
  }

  [[noreturn]] void refuse(std::string_view key, const std::string& got, const std::string& expected) const {
    const std::string name = prefix_ + std::string(key);
    throw UserError("" + file_ + ": " + (name.empty() ? "the document" : name) + " = " + got + "\n  expected " +
                    expected);
  }

  // Null for a missing key and for null, which transformers writes for "use the default".
  const JsonValue* find(std::string_view key) const {
    asked_.emplace(key);
    const JsonValue* value = object_.find(key);
    return value && value->as<JsonNull>() ? nullptr : value;
  }

  std::optional<int64_t> find_integer(std::string_view key, int64_t max = kMaxSize) const {
    const JsonValue* value = find(key);
    if (!value) return std::nullopt;
    const auto* number = value->as<uint64_t>();
    if (!number || *number < 1 || *number > static_cast<uint64_t>(max))
      refuse(key, describe(*value), concat("an integer from 1 to ", max));
    return static_cast<int64_t>(*number);
  }

  std::optional<int64_t> find_integer_or_zero(std::string_view key) const {
    const JsonValue* value = find(key);
    const auto* number = value ? value->as<uint64_t>() : nullptr;
    return number && *number == 0 ? 0 : find_integer(key);
  }

  int64_t integer(std::string_view key, int64_t max = kMaxSize) const {
    const auto number = find_integer(key, max);
    if (!number) refuse(key, "missing", concat("an integer from 1 to ", max));
    return *number;
  }

  // 500000 and 500000.0 are both written.
  std::optional<double> find_number(std::string_view key, bool or_zero = false) const {
    const JsonValue* value = find(key);
    if (!value) return std::nullopt;
    double number = -1;
    if (const auto* whole = value->as<uint64_t>()) number = static_cast<double>(*whole);
    if (const auto* real = value->as<double>()) number = *real;
    if (!(or_zero ? number >= 0 : number > 0) || !std::isfinite(number))
      refuse(key, describe(*value), or_zero ? "a number, not negative" : "a number above 0");
    return number;
  }

  double number(std::string_view key) const {
    const auto number = find_number(key);
    if (!number) refuse(key, "missing", "a number above 0");
    return *number;
  }

  bool flag(std::string_view key, bool otherwise) const {
    const JsonValue* value = find(key);
    if (!value) return otherwise;
    const auto* flag = value->as<bool>();
    if (!flag) refuse(key, describe(*value), "true or false");
    return *flag;
  }

  std::optional<std::string> find_text(std::string_view key) const {
    const JsonValue* value = find(key);
    if (!value) return std::nullopt;
    const auto* text = value->as<std::string>();
    if (!text) refuse(key, describe(*value), "a text");
    return *text;
  }

  // A key with one value we can compute, which is also its default.
  void must_be_flag(std::string_view key, bool only) const {
    if (flag(key, only) != only)
      refuse(key, only ? "false" : "true", only ? "true; no other is supported" : "false; no other is supported");
  }
  void must_be_text(std::string_view key, std::string_view only) const {
    const auto text = find_text(key);
    if (text && *text != only) refuse(key, quote_safe(*text), concat("\"", only, "\"; no other is supported"));
  }

  void must_be_number(std::string_view key, double only) const {
    if (find_number(key, true).value_or(only) != only)
      refuse(key, describe(*find(key)), concat(only, "; no other is supported"));
  }

  const JsonObject& members() const { return *object_.as<JsonObject>(); }
  bool has(std::string_view key) const { return object_.find(key) != nullptr; }  // null too
  bool was_asked_for(const std::string& key) const { return asked_.contains(key); }
  const std::string& file() const { return file_; }

 private:
  const JsonValue& object_;
  std::string file_;
  std::string prefix_;
  mutable std::set<std::string> asked_;  // keys, for what is left over at the end
};

}  // namespace sfsdp::train

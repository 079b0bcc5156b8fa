// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/config/config_fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train {

namespace {

Rule any() { return {}; }
Rule at_least(double low) {
  Rule rule;
  rule.low = low;
  return rule;
}
Rule above(double low) {
  Rule rule = at_least(low);
  rule.low_is_outside = true;
  return rule;
}
Rule between(double low, double high) {
  Rule rule = at_least(low);
  rule.high = high;
  return rule;
}
Rule below_one() {
  Rule rule = between(0, 1);
  rule.high_is_outside = true;
  return rule;
}
Rule positive_or_minus_one() {
  Rule rule = at_least(1);
  rule.minus_one_too = true;
  return rule;
}
std::vector<std::string> choices_of(std::string_view text) {
  return text.empty() ? std::vector<std::string>{} : split(text, '|');
}
Rule one_of(std::string_view choices) {
  Rule rule;
  rule.choices = choices_of(choices);
  return rule;
}

// 8 prints as 8, 0.5 as 0.5.
std::string number(double value) {
  return value == std::floor(value) ? std::to_string(static_cast<int64_t>(value)) : shortest(value);
}

// Keys that upstream moved; old configs go on working.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kMoved = {{
    {"training.seed", "debug.seed"},
    {"training.deterministic", "debug.deterministic"},
    {"training.debug_moe_force_load_balance", "debug.moe_force_load_balance"},
}};

}  // namespace

std::string Rule::text() const {
  if (!choices.empty()) return choices.size() == 1 ? choices[0] : concat("one of ", join(choices, ", "));
  if (std::isfinite(high)) return concat("from ", number(low), " to ", high_is_outside ? "below " : "", number(high));
  if (!std::isfinite(low)) return "";
  if (low_is_outside) return concat("above ", number(low));
  return concat(minus_one_too ? "-1, or " : "", number(low), " or more");
}

bool Rule::allows(double value) const {
  if (minus_one_too && value == -1) return true;
  if (!std::isfinite(value)) return false;
  const bool low_ok = low_is_outside ? value > low : value >= low;
  const bool high_ok = high_is_outside ? value < high : value <= high;
  return low_ok && high_ok;
}

bool Rule::allows(const std::string& value) const {
  return choices.empty() || std::find(choices.begin(), choices.end(), value) != choices.end();
}

const std::vector<Field>& config_fields() {
  static const std::vector<Field> fields = [] {
    std::vector<Field> rows;
    std::string section;
#define SFSDP_SECTION(member, Struct, path, help_text) \
  {                                                    \
    constexpr auto kMember = &JobConfig::member;       \
    section = path;
#define SFSDP_KEY(Struct, type, name, default_value, rule, help_text) \
  rows.push_back({section, #name, rule, help_text, [](JobConfig& config) -> Slot { return &(config.*kMember).name; }});
#define SFSDP_END(Struct) }
#include "sfsdp/train/config/config_fields.def"
#undef SFSDP_SECTION
#undef SFSDP_KEY
#undef SFSDP_END
    return rows;
  }();
  return fields;
}

const std::vector<InertKey>& inert_keys() {
  static const std::vector<InertKey> keys = {
#define SFSDP_INERT(section, key, type, default_value, why) {section, #key, #type, default_value, why, false},
#define SFSDP_LATER(section, key, type, default_value, why) {section, #key, #type, default_value, why, true},
#define SFSDP_ALWAYS(section, key, type, default_value, always, others, why) \
  {section, #key, #type, default_value, why, false, always, choices_of(others)},
#include "sfsdp/train/config/config_inert.def"
#undef SFSDP_INERT
#undef SFSDP_LATER
#undef SFSDP_ALWAYS
  };
  return keys;
}

const std::vector<SectionInfo>& config_sections() {
  static const std::vector<SectionInfo> sections = {
#define SFSDP_SECTION(member, Struct, path, help) {path, help},
#define SFSDP_KEY(Struct, type, name, default_value, rule, help)
#define SFSDP_END(Struct)
#include "sfsdp/train/config/config_fields.def"
#undef SFSDP_SECTION
#undef SFSDP_KEY
#undef SFSDP_END
  };
  return sections;
}

std::span<const std::pair<std::string_view, std::string_view>> moved_keys() { return kMoved; }

namespace {

template <class Key>
const Key* find(const std::vector<Key>& keys, std::string_view path) {
  for (const auto& [old_path, new_path] : kMoved)
    if (path == old_path) path = new_path;
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.path() == path; });
  return found == keys.end() ? nullptr : &*found;
}

}  // namespace

const Field* find_field(std::string_view path) { return find(config_fields(), path); }
const InertKey* find_inert(std::string_view path) { return find(inert_keys(), path); }

namespace {

template <class T>
struct Unwrapped {
  using type = T;
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using type = T;
};

// What a slot holds, an optional's inside: bool, int64_t, double, std::string or StringList.
template <class Pointer>
using Inner = typename Unwrapped<std::remove_pointer_t<Pointer>>::type;

Slot slot_of(const Field& field, const JobConfig& config) {
  return field.slot(const_cast<JobConfig&>(config));  // only read through
}

template <class T>
std::string literal_of(const T& value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  if constexpr (std::is_same_v<T, int64_t>) return std::to_string(value);
  if constexpr (std::is_same_v<T, double>) return shortest(value);
  if constexpr (std::is_same_v<T, std::string>) return json_quoted(value);
  if constexpr (std::is_same_v<T, TomlTable>) return "a table";
  if constexpr (std::is_same_v<T, StringList>) {
    StringList parts;
    for (const std::string& part : value) parts.push_back(json_quoted(part));
    return concat('[', join(parts, ", "), ']');
  }
}

template <class T>
std::string_view kind_of() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, int64_t>) return "an integer";
  if constexpr (std::is_same_v<T, double>) return "a number";
  if constexpr (std::is_same_v<T, std::string>) return "a string";
  if constexpr (std::is_same_v<T, StringList>) return "a list of strings";
}

[[noreturn]] void fail(const std::string& name, const std::string& got, const std::string& expected) {
  throw UserError(concat(name, " = ", got, "\n  expected ", expected));
}

template <class T>
T convert(const Field& field, const TomlValue& value, const std::string& name) {
  if (const T* same = std::get_if<T>(&value)) return *same;
  if constexpr (std::is_same_v<T, double>)
    if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
  const std::string got = std::visit([](const auto& v) { return literal_of(v); }, value);
  fail(name, got, concat(kind_of<T>(), field.rule.text().empty() ? "" : ", ", field.rule.text()));
}

template <class T>
void check_rule(const Field& field, const T& value, const std::string& name) {
  bool allowed = true;
  if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>)
    allowed = field.rule.allows(static_cast<double>(value));
  if constexpr (std::is_same_v<T, double>) allowed = allowed && std::isfinite(value);
  if constexpr (std::is_same_v<T, std::string>) allowed = field.rule.allows(value);
  if (allowed) return;
  std::string expected = field.rule.text().empty() ? std::string(kind_of<T>()) : field.rule.text();
  if constexpr (std::is_same_v<T, std::string>) expected += did_you_mean(value, field.rule.choices);
  fail(name, literal_of(value), expected);
}

[[noreturn]] void fail_inert(const InertKey& key, const std::string& got, const std::string& name) {
  throw UserError(concat(name, " = ", got, key.is_later ? " is not supported yet: " : " changes nothing: ", key.why,
                         "\n  expected the default, ", key.default_value.empty() ? "unset" : key.default_value,
                         "; leave it out"));
}

}  // namespace

bool Field::is_bool() const {
  JobConfig config;
  return std::holds_alternative<bool*>(slot(config));
}

std::string Field::type_name() const {
  const auto name = [](auto* pointer) -> std::string {
    using T = Inner<decltype(pointer)>;
    if constexpr (std::is_same_v<T, bool>) return "BOOL";
    if constexpr (std::is_same_v<T, int64_t>) return "INT";
    if constexpr (std::is_same_v<T, double>) return "FLOAT";
    if constexpr (std::is_same_v<T, std::string>) return "TEXT";
    if constexpr (std::is_same_v<T, StringList>) return "LIST";
  };
  JobConfig config;
  return std::visit(name, slot(config));
}

void assign(const Field& field, JobConfig& config, const TomlValue& value, const std::string& name) {
  const auto store = [&](auto* pointer) {
    auto converted = convert<Inner<decltype(pointer)>>(field, value, name);
    check_rule(field, converted, name);
    *pointer = std::move(converted);
  };
  std::visit(store, field.slot(config));
}

void assign_text(const Field& field, JobConfig& config, const std::string& text, const std::string& name) {
  const auto read = [&](auto* pointer) -> TomlValue {
    using T = Inner<decltype(pointer)>;
    const auto check = [&](auto parsed) -> T {
      const bool too_large =
          std::is_same_v<T, int64_t> && !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
      if (!parsed)
        fail(name, text,
             concat(kind_of<T>(), too_large ? " below 2^63" : "", field.rule.text().empty() ? "" : ", ",
                    field.rule.text()));
      return *parsed;
    };
    if constexpr (std::is_same_v<T, bool>)
      return check(text == "true" || text == "false" ? std::optional(text == "true") : std::nullopt);
    if constexpr (std::is_same_v<T, int64_t>) return check(parse_int(text));
    if constexpr (std::is_same_v<T, double>) return check(parse_double(text));
    if constexpr (std::is_same_v<T, std::string>) return text;
    if constexpr (std::is_same_v<T, StringList>) return text.empty() ? StringList{} : split(text, ',');
  };
  const auto unset = [](auto* pointer) {
    constexpr bool kOptional = !std::is_same_v<Inner<decltype(pointer)>, std::remove_pointer_t<decltype(pointer)>>;
    if constexpr (kOptional) pointer->reset();
    return kOptional;
  };
  if (text == "None" && std::visit(unset, field.slot(config))) return;
  assign(field, config, std::visit(read, field.slot(config)), name);
}

namespace {

// got: as TOML spells it; typed: as the user did
std::string check_literal(const InertKey& key, const std::string& got, const std::string& typed,
                          const std::string& name) {
  const bool is_accepted = got == key.default_value || (!key.always.empty() && got == key.always) ||
                           std::ranges::find(key.accepted, got) != key.accepted.end();
  if (!is_accepted) fail_inert(key, typed, name);
  return key.always.empty() || got == key.always ? "" : concat(name, " = ", typed, " changes nothing: ", key.why);
}

}  // namespace

std::string check_inert(const InertKey& key, const TomlValue& value, const std::string& name) {
  std::string got = std::visit([](const auto& v) { return literal_of(v); }, value);
  if (const auto* number = std::get_if<int64_t>(&value); number && key.type == "FLOAT")
    got = shortest(static_cast<double>(*number));
  return check_literal(key, got, got, name);
}

std::string check_inert_text(const InertKey& key, const std::string& text, const std::string& name) {
  std::string got = text == "None" ? "" : text;
  if (key.type == "TEXT" && text != "None") got = json_quoted(text);
  if (key.type == "LIST") got = literal_of(text.empty() ? StringList{} : split(text, ','));
  if (const auto number = parse_double(text); number && key.type == "FLOAT") got = shortest(*number);
  return check_literal(key, got, text, name);
}

std::string literal(const Field& field, const JobConfig& config) {
  const auto print = [](const auto* pointer) -> std::string {
    using Stored = std::remove_cvref_t<decltype(*pointer)>;
    if constexpr (std::is_same_v<Stored, typename Unwrapped<Stored>::type>)
      return literal_of(*pointer);
    else
      return *pointer ? literal_of(**pointer) : "";
  };
  return std::visit(print, slot_of(field, config));
}

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/sweep_cases.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::tools {
namespace {

// One option and all values that it takes.
struct Range {
  std::string name;
  std::vector<std::pair<std::string, std::string>> values;  // as on the command line, and as JSON
};

// An option of simulate, not a key of a config.
bool is_option(const std::string& name) { return name.find('.') == std::string::npos || name.starts_with("simulate."); }

// As a flag has it, and as JSON.
std::pair<std::string, std::string> scalar(const std::string& name, const JsonValue& value) {
  const auto convert = [&](const auto& v) -> std::pair<std::string, std::string> {
    using T = std::remove_cvref_t<decltype(v)>;
    if constexpr (std::is_same_v<T, JsonNull>) {
      if (is_option(name))
        throw UserError(concat(name, " = null\n  expected a number or a text; null unsets a key of a config"));
      return {"None", "null"};
    }
    if constexpr (std::is_same_v<T, bool>) return v ? std::pair{"true", "true"} : std::pair{"false", "false"};
    if constexpr (std::is_same_v<T, uint64_t> || std::is_same_v<T, int64_t>) return {concat(v), concat(v)};
    if constexpr (std::is_same_v<T, double>) return {shortest(v), shortest(v)};
    if constexpr (std::is_same_v<T, std::string>) return {v, json_quoted(v)};
    throw UserError(concat(name, " = ", describe(value), "\n  expected a number, a text, true, false or null"));
  };
  return std::visit(convert, value.value);
}

std::pair<std::string, std::string> one_value(const std::string& name, const JsonValue& value) {
  const JsonArray* list = value.as<JsonArray>();
  if (!list) return scalar(name, value);
  std::vector<std::string> texts, jsons;
  for (const JsonValue& part : *list) {
    const auto [text, json] = scalar(name, part);
    texts.push_back(text);
    jsons.push_back(json);
  }
  return {join(texts, ","), concat('[', join(jsons, ", "), ']')};
}

void read_ranges(const std::string& prefix, const JsonObject& object, std::vector<Range>& ranges) {
  for (const auto& [key, value] : object) {
    const std::string name = prefix.empty() ? key : concat(prefix, '.', key);
    if (name == "help")
      throw UserError(
          "help in a case of a sweep\n  expected a key of a config, or an option that simulate --help lists");
    if (const JsonObject* section = value.as<JsonObject>()) {
      read_ranges(name, *section, ranges);
      continue;
    }
    if (std::ranges::find(ranges, name, &Range::name) != ranges.end())
      throw UserError(concat(name, " is set twice\n  expected it once, in a section or with its whole name"));
    Range range{name, {}};
    if (const JsonArray* list = value.as<JsonArray>()) {
      for (const JsonValue& each : *list) range.values.push_back(one_value(name, each));
      if (list->empty()) throw UserError(concat(name, " = []\n  expected at least one value"));
    } else {
      range.values.push_back(scalar(name, value));
    }
    ranges.push_back(std::move(range));
  }
}

std::vector<Range> ranges_of(std::string_view line, const std::string& where) {
  const JsonValue value = parse_json(line, where);
  const JsonObject* object = value.as<JsonObject>();
  if (!object)
    throw UserError(concat(where, ": ", describe(value), "\n  expected an object, such as {\"mesh\": \"dp_shard=8\"}"));
  std::vector<Range> ranges;
  read_ranges("", *object, ranges);
  return ranges;
}

void add_product(const std::vector<Range>& ranges, size_t line, const std::string& file,
                 std::vector<SweepCase>& cases) {
  size_t count = 1;
  for (const Range& range : ranges) {
    count *= range.values.size();
    if (count > kMaxSweepCases - cases.size())
      throw UserError(concat(file, ":", line, ": more than ", with_commas(int64_t{kMaxSweepCases}),
                             " configurations\n  expected fewer; share them out over several files"));
  }
  for (size_t i = 0; i < count; ++i) {
    SweepCase next;
    next.line = line;
    size_t rest = i;
    for (size_t r = ranges.size(); r-- > 0;) {  // the last one varies fastest
      const auto& [value, json] = ranges[r].values[rest % ranges[r].values.size()];
      rest /= ranges[r].values.size();
      next.options.push_back({ranges[r].name, value, json});
    }
    std::ranges::reverse(next.options);
    cases.push_back(std::move(next));
  }
}

}  // namespace

std::vector<SweepCase> read_sweep(std::string_view text, const std::string& file) {
  std::vector<SweepCase> cases;
  size_t number = 0;
  for (const std::string& line : split(text, '\n')) {
    ++number;
    const std::string_view content = trim(line);
    if (content.empty() || content.front() == '#') continue;
    std::vector<Range> ranges;
    try {
      ranges = ranges_of(content, concat(file, ":", number));
    } catch (const UserError& error) {
      cases.push_back({number, {}, error.what()});
      continue;
    }
    add_product(ranges, number, file, cases);
  }
  return cases;
}

}  // namespace sfsdp::tools

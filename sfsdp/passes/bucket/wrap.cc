// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/bucket/wrap.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/passes/analysis/param_reads.h"

namespace sfsdp::passes {
namespace {

using Path = std::vector<std::string>;

struct Pattern {
  std::string text;
  Path path;
};
using UnitPatterns = std::vector<Pattern>;  // one entry of the list: a pattern, or those of a bracket

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(' ') - first + 1));
}

[[noreturn]] void fail(const std::string& units, const std::string& message, const std::string& detail) {
  throw UserError(concat("pass wrap: DataParallelOptions::units = \"", units, "\": ", message, "\n  ", detail));
}

std::vector<UnitPatterns> parse_units(const std::string& units) {
  std::vector<UnitPatterns> groups;
  bool in_bracket = false;
  std::string word;
  const auto end_word = [&] {
    const std::string text = trimmed(word);
    word.clear();
    if (text.empty()) fail(units, "an empty pattern", "expected module paths such as layers.*, [norm, output]");
    groups.back().push_back({text, split(text, '.')});
  };
  groups.emplace_back();
  for (const char c : units) {
    if (c == '[' && !in_bracket && trimmed(word).empty()) {
      in_bracket = true;
    } else if (c == ']' && in_bracket) {
      in_bracket = false;
    } else if (c == ',' && in_bracket) {
      end_word();
    } else if (c == ',') {
      end_word();
      groups.emplace_back();
    } else if (c == '[' || c == ']') {
      fail(units, concat("a stray ", c), "expected brackets around whole entries: [norm, output]");
    } else {
      word += c;
    }
  }
  if (in_bracket) fail(units, "a bracket is not closed", "expected [norm, output]");
  end_word();
  return groups;
}

// The beginning of `name` that the pattern matches: "layers.3" of "layers.3.norm.weight" for "layers.*".
std::optional<std::string> matched(const Path& pattern, const Path& name) {
  if (pattern.size() > name.size()) return std::nullopt;
  for (size_t i = 0; i < pattern.size(); ++i)
    if (pattern[i] != "*" && pattern[i] != name[i]) return std::nullopt;
  return join(Path(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(pattern.size())), ".");
}

std::vector<std::string> units_by_pattern(const std::vector<Path>& names, const std::string& units) {
  const std::vector<UnitPatterns> groups = parse_units(units);
  std::vector<std::string> result(names.size(), "root");
  for (const UnitPatterns& group : groups) {
    std::string joined;
    for (const Pattern& pattern : group) joined += (joined.empty() ? "" : "_") + pattern.text;
    for (const Pattern& pattern : group) {
      bool any = false;
      for (size_t i = 0; i < names.size(); ++i) {
        const auto match = matched(pattern.path, names[i]);
        if (!match) continue;
        any = true;
        if (result[i] == "root") result[i] = group.size() > 1 ? joined : *match;
      }
      if (any) continue;
      std::vector<std::string> modules;
      for (const Path& name : names) modules.push_back(name[0]);
      fail(units, concat(pattern.text, " matches no parameter"),
           concat("expected the path of a module", did_you_mean(pattern.text, modules)));
    }
  }
  return result;
}

std::vector<std::string> units_by_number(const std::vector<Path>& names) {
  std::vector<std::string> result(names.size());
  size_t last_numbered = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    result[i] = ir::block_of(join(names[i], "."));
    if (!result[i].empty()) last_numbered = i;
  }
  std::string tail;
  std::set<std::string> in_tail;
  for (size_t i = last_numbered + 1; i < names.size(); ++i)
    if (in_tail.insert(names[i][0]).second) tail += (tail.empty() ? "" : "_") + names[i][0];
  const bool any_number = !result[last_numbered].empty();
  for (size_t i = 0; i < names.size(); ++i)
    if (result[i].empty()) result[i] = any_number && i > last_numbered ? tail : names[i][0];
  return result;
}

std::vector<ir::Op*> params_of(const ir::Graph& graph) {
  std::vector<ir::Op*> params;
  for (const auto& op : graph.ops())
    if (op->is("param")) params.push_back(op.get());
  return params;
}

std::string brackets_of(const UnitPatterns& group) {
  std::string text;
  for (const Pattern& pattern : group) text += (text.empty() ? "[" : ", ") + pattern.text;
  return text + "]";
}

std::string rule_by_pattern(const Path& name, const std::vector<UnitPatterns>& groups) {
  for (const UnitPatterns& group : groups)
    for (const Pattern& pattern : group)
      if (matched(pattern.path, name))
        return group.size() > 1 ? concat("bracket ", brackets_of(group)) : concat("matches ", pattern.text);
  return "matches no pattern";
}

}  // namespace

std::map<std::string, std::string> wrap_rules(const std::vector<std::string>& params, const WrapOptions& options) {
  std::vector<Path> names;
  for (const std::string& name : params) names.push_back(split(name, '.'));
  const bool by_number = trimmed(options.units).empty();
  const auto units = by_number ? units_by_number(names) : units_by_pattern(names, options.units);
  const auto groups = by_number ? std::vector<UnitPatterns>{} : parse_units(options.units);
  const auto has_number = [](const Path& name) { return !ir::block_of(join(name, ".")).empty(); };
  const auto last = std::ranges::find_if(names.rbegin(), names.rend(), has_number);  // as in units_by_number
  std::map<std::string, std::string> rules;
  for (size_t i = 0; i < names.size(); ++i) {
    std::string rule = "top module: none has a number";
    if (!by_number)
      rule = rule_by_pattern(names[i], groups);
    else if (has_number(names[i]))
      rule = "module with a number";
    else if (last != names.rend())
      rule = static_cast<std::ptrdiff_t>(i) < names.rend() - last ? "top module before the last one with a number"
                                                                  : "all after the last module with a number";
    rules.emplace(units[i], rule);
  }
  return rules;
}

const std::vector<Field<WrapOptions>>& WrapOptions::fields() {
  static const std::vector<Field<WrapOptions>> kFields = {
      field("units", &WrapOptions::units, {},
            "module paths, as \"tok_embeddings, layers.*, [norm, output]\"; empty: by module number")};
  return kFields;
}

std::map<std::string, std::string> units_by_name(const ir::Graph& graph, const WrapOptions& options) {
  const std::vector<ir::Op*> params = params_of(graph);
  std::vector<Path> names;
  for (const ir::Op* param : params) names.push_back(split(param->attr<std::string>("name"), '.'));
  if (names.empty()) return {};
  const auto units = trimmed(options.units).empty() ? units_by_number(names) : units_by_pattern(names, options.units);
  std::map<std::string, std::string> unit_of;
  for (size_t i = 0; i < params.size(); ++i) unit_of.emplace(params[i]->attr<std::string>("name"), units[i]);
  return unit_of;
}

bool wrap(ir::Graph& graph, const WrapOptions& options, PassContext& ctx) {
  const auto unit_of = units_by_name(graph, options);
  bool changed = false;
  std::set<std::string> units;
  for (ir::Op* param : params_of(graph)) {
    const std::string& unit = unit_of.at(param->attr<std::string>("name"));
    changed |= !param->has_attr("unit") || param->attrs.at("unit") != ir::Attr(unit);
    param->attrs["unit"] = unit;
    units.insert(unit);
    ctx.metrics.add("params", 1);
  }
  ctx.metrics.add("units", std::ssize(units));
  for (const auto& op : graph.ops())
    SFSDP_CHECK(!op->is("param") || op->has_attr("unit"), "param ", op->result()->name(), " is in no unit");
  return changed;
}

}  // namespace sfsdp::passes

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
#include "sfsdp/passes/choose_units.h"
#include "sfsdp/passes/overlap/schedule_attrs.h"
#include "sfsdp/passes/predict.h"
#include "sfsdp/passes/step_profile.h"
#include "sfsdp/plan/memory_plan.h"

namespace sfsdp::passes {
namespace {

using Path = std::vector<std::string>;

struct Pattern {
  std::string text;
  Path path;
};
using Group = std::vector<Pattern>;  // one entry of the list: a pattern, or those of a bracket

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(' ') - first + 1));
}

[[noreturn]] void fail(const std::string& units, const std::string& message, const std::string& detail) {
  throw UserError(concat("error in wrap units \"", units, "\": ", message, "\n  ", detail));
}

std::vector<Group> parse_units(const std::string& units) {
  std::vector<Group> groups;
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
  const std::vector<Group> groups = parse_units(units);
  std::vector<std::string> result(names.size(), "root");
  for (const Group& group : groups) {
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
           concat("expected the path of a module; did you mean ", nearest(pattern.text, modules), "?"));
    }
  }
  return result;
}

std::vector<std::string> units_by_number(const std::vector<Path>& names) {
  std::vector<std::string> result(names.size());
  size_t behind = 0;  // the last numbered one
  for (size_t i = 0; i < names.size(); ++i) {
    result[i] = block_of(join(names[i], "."));
    if (!result[i].empty()) behind = i;
  }
  std::string tail;
  std::set<std::string> in_tail;
  for (size_t i = behind + 1; i < names.size(); ++i)
    if (in_tail.insert(names[i][0]).second) tail += (tail.empty() ? "" : "_") + names[i][0];
  const bool any_number = !result[behind].empty();
  for (size_t i = 0; i < names.size(); ++i)
    if (result[i].empty()) result[i] = any_number && i > behind ? tail : names[i][0];
  return result;
}

// Units in the profile's order by what they are named for every param.
std::vector<std::string> in_profile_order(const StepProfile& profile, const std::vector<ir::Op*>& params,
                                          const std::vector<std::string>& units) {
  std::map<std::string, std::string> unit_of;
  for (size_t i = 0; i < params.size(); ++i) unit_of[params[i]->attr<std::string>("name")] = units[i];
  std::vector<std::string> ordered;
  for (const ParamProfile& p : profile.params) ordered.push_back(unit_of.at(p.name));
  return ordered;
}

// The last unit is the first that backward reads: kept gathered, then those before it, as long as all fits.
void keep_what_fits(const StepProfile& profile, Schedule& schedule, int64_t budget) {
  for (size_t u = schedule.size(); u-- > 0;) {
    schedule[u].keep = true;
    if (predict(profile, schedule).peak_bytes <= budget) continue;
    schedule[u].keep = false;
    break;
  }
}

// A schedule as attributes of params, in their order; returns their units.
std::vector<std::string> write_units(const std::vector<ir::Op*>& params, const StepProfile& profile,
                                     const Schedule& schedule, const std::string& mode) {
  std::map<std::string, std::pair<std::string, const UnitChoice*>> choice_of;
  for (const UnitChoice& unit : schedule) {
    const std::string& first = profile.params[unit.first].name;
    for (size_t i = unit.first; i < unit.end; ++i) choice_of[profile.params[i].name] = {first, &unit};
  }
  std::vector<std::string> units;
  for (ir::Op* param : params) {
    const auto& [name, unit] = choice_of.at(param->attr<std::string>("name"));
    units.push_back(name);
    param->attrs["reason"] = std::string(unit->reason);
    if (unit->keep) param->attrs["keep"] = true;
    if (mode == "search") write_schedule(*param, *unit);
  }
  return units;
}

std::vector<ir::Op*> params_of(const ir::Graph& graph) {
  std::vector<ir::Op*> params;
  for (const auto& op : graph.ops())
    if (op->is("param")) params.push_back(op.get());
  return params;
}

// Arena over live bytes: units of all sizes, kept or not, leave holes; at worst 1.15 was seen.
constexpr double kLooseArena = 1.15;

// Whether a schedule's plan, with addresses, takes at most `memory` bytes. A profile tells where it is clear; else the
// passes behind this one run on a copy, which is then planned.
bool fits(const Schedule& schedule, const StepProfile& profile, const ir::Graph& graph, const WrapOptions& options,
          const PassContext& ctx, double memory) {
  const int64_t peak = predict(profile, schedule).peak_bytes;
  const auto state = static_cast<double>(profile.state_bytes);
  if (state + (static_cast<double>(peak) - state) * kLooseArena <= memory) return true;
  if (!ctx.finish) return static_cast<double>(peak) <= memory;
  ir::Graph copy = graph.clone();
  const auto params = params_of(copy);
  const auto units = write_units(params, profile, schedule, options.mode);
  for (size_t i = 0; i < params.size(); ++i) params[i]->attrs["unit"] = units[i];
  ctx.finish(copy);
  const auto kernels = cost::form_kernels(copy, *options.machine, cost::Execution::Fused, options.micro_batches);
  plan::MemoryOptions plan = plan::memory_options(copy, kernels, options.micro_batches);
  plan.enough_bytes = static_cast<int64_t>(memory);
  return static_cast<double>(plan::plan_memory(copy, plan).peak()) <= memory;
}

std::vector<std::string> units_by_cost(const std::vector<ir::Op*>& params, const std::vector<std::string>& named,
                                       const ir::Graph& graph, const WrapOptions& options, PassContext& ctx) {
  if (options.mode != "auto" && options.mode != "search")
    throw UserError(concat("wrap mode=", options.mode, "\n  expected manual, auto or search"));
  if (!options.machine)
    throw UserError(concat("wrap mode=", options.mode, " has no machine to count costs on",
                           "\n  expected a machine file, such as machines/dgx_h100.toml, in parallelism.fsdp_machine"));
  const StepProfile profile = profile_step(graph, *options.machine, cost::Execution::Fused, options.micro_batches);
  // A profile counts live bytes, to some per cent; addresses need a little more.
  const double memory =
      options.memory_bytes > 0 ? static_cast<double>(options.memory_bytes) : options.machine->memory_bytes;
  auto budget = static_cast<int64_t>(0.95 * memory);
  Schedule schedule = greedy_units(profile, budget);
  if (options.choose_reshard) keep_what_fits(profile, schedule, budget);
  if (options.mode == "search") {
    Schedule manual = named_units(profile, in_profile_order(profile, params, named));
    manual.back().keep = options.choose_reshard;  // as pass reshard does with named units
    // Where the named units take more and still fit, so may others: search is not to be slower for its caution.
    if (const int64_t peak = predict(profile, manual).peak_bytes; static_cast<double>(peak) <= memory)
      budget = std::max(budget, peak);
    const Schedule greedy = std::move(schedule);
    SearchOptions search = {.budget_bytes = budget, .choose_reshard = options.choose_reshard};
    const auto fits_memory = [&](const Schedule& s) { return fits(s, profile, graph, options, ctx, memory); };
    schedule = search_units(profile, {manual, greedy}, search);
    if (!fits_memory(schedule)) {
      const auto state = static_cast<double>(profile.state_bytes);
      search.budget_bytes = static_cast<int64_t>(state + (memory - state) / kLooseArena);
      search.evaluations /= 2;  // from what was found
      std::vector<Schedule> others = {search_units(profile, {schedule, manual, greedy}, search), manual, greedy};
      std::ranges::stable_sort(others, {}, [&](const Schedule& s) { return predict(profile, s).seconds; });
      const auto fitting = std::ranges::find_if(others, fits_memory);
      schedule = fitting != others.end() ? *fitting : *std::ranges::min_element(others, {}, [&](const Schedule& s) {
        return predict(profile, s).peak_bytes;
      });
    }
  }
  const Prediction prediction = predict(profile, schedule);
  ctx.metrics.add("predicted_step_us", static_cast<int64_t>(prediction.seconds * 1e6));
  ctx.metrics.add("predicted_exposed_us", static_cast<int64_t>(prediction.exposed * 1e6));
  ctx.metrics.add("predicted_peak_mib", prediction.peak_bytes >> 20);
  return write_units(params, profile, schedule, options.mode);
}

std::string brackets_of(const Group& group) {
  std::string text;
  for (const Pattern& pattern : group) text += (text.empty() ? "[" : ", ") + pattern.text;
  return text + "]";
}

std::string rule_by_pattern(const Path& name, const std::vector<Group>& groups) {
  for (const Group& group : groups)
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
  const auto groups = by_number ? std::vector<Group>{} : parse_units(options.units);
  const auto has_number = [](const Path& name) { return !block_of(join(name, ".")).empty(); };
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
                                                                  : "all behind the last module with a number";
    rules.emplace(units[i], rule);
  }
  return rules;
}

bool wrap(ir::Graph& graph, const WrapOptions& options, PassContext& ctx) {
  const std::vector<ir::Op*> params = params_of(graph);
  std::vector<Path> names;
  for (const ir::Op* param : params) names.push_back(split(param->attr<std::string>("name"), '.'));
  if (params.empty()) return false;
  auto units = trimmed(options.units).empty() ? units_by_number(names) : units_by_pattern(names, options.units);
  if (options.mode != "manual") units = units_by_cost(params, units, graph, options, ctx);
  bool changed = false;
  for (size_t i = 0; i < params.size(); ++i) {
    const ir::Attr unit = units[i];
    changed |= !params[i]->has_attr("unit") || params[i]->attrs.at("unit") != unit;
    params[i]->attrs["unit"] = unit;
  }
  ctx.metrics.add("units", static_cast<int64_t>(std::set<std::string>(units.begin(), units.end()).size()));
  ctx.metrics.add("params", static_cast<int64_t>(params.size()));
  return changed;
}

}  // namespace sfsdp::passes

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/tune.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/tune/estimate.h"
#include "sfsdp/tune/search.h"

namespace sfsdp::tune {
namespace {

// Arena over live bytes: units of all sizes, kept or not, leave holes; at worst 1.15 was seen.
constexpr double kLooseArena = 1.15;

// The last unit is the first that backward reads: kept gathered, then those before it, as long as all fits.
void keep_what_fits(const StepProfile& profile, Schedule& schedule, int64_t budget) {
  for (size_t u = schedule.size(); u-- > 0;) {
    schedule[u].keep = true;
    if (estimate(profile, schedule).peak_bytes <= budget) continue;
    schedule[u].keep = false;
    break;
  }
}

// Whether a schedule is clearly within memory: the profile counts live bytes, addresses need more.
bool fits_clearly(const StepProfile& profile, const Schedule& schedule, double memory) {
  const auto state = static_cast<double>(profile.state_bytes);
  const auto peak = static_cast<double>(estimate(profile, schedule).peak_bytes);
  return state + (peak - state) * kLooseArena <= memory;
}

Schedule search(const StepProfile& profile, Schedule named, const Schedule& greedy, SearchOptions options,
                double memory, const std::function<bool(const Schedule&)>& fits) {
  named.back().keep = options.choose_reshard;  // as pass reshard does with units by name
  // Where units by name take more and still fit, so may others: search is not to be slower for its caution.
  if (const int64_t peak = estimate(profile, named).peak_bytes; static_cast<double>(peak) <= memory)
    options.budget_bytes = std::max(options.budget_bytes, peak);
  const auto fits_memory = [&](const Schedule& s) { return fits_clearly(profile, s, memory) || fits(s); };
  Schedule found = search_units(profile, {named, greedy}, options);
  if (fits_memory(found)) return found;
  const auto state = static_cast<double>(profile.state_bytes);
  options.budget_bytes = static_cast<int64_t>(state + (memory - state) / kLooseArena);
  options.evaluations /= 2;  // from what was found
  std::vector<Schedule> others = {search_units(profile, {found, named, greedy}, options), named, greedy};
  std::ranges::stable_sort(others, {}, [&](const Schedule& s) { return estimate(profile, s).seconds; });
  const auto fitting = std::ranges::find_if(others, fits_memory);
  if (fitting != others.end()) return *fitting;
  return *std::ranges::min_element(others, {}, [&](const Schedule& s) { return estimate(profile, s).peak_bytes; });
}

void check_options(const passes::PipelineOptions& options, const TuneOptions& tune) {
  const auto refuse = [&](const char* why, const char* expected) {
    const char* wrap = tune.wrap == Wrap::Auto ? "Wrap::Auto" : "Wrap::Search";
    throw UserError(concat("TuneOptions::wrap = ", wrap, why, "\n  expected ", expected));
  };
  if (options.keep_whole)
    refuse(" at DataParallelOptions::zero_stage 1 or 2",
           "Wrap::Manual: costs are those of gathers where parameters are read, and here they are whole; set"
           " Wrap::Manual, or DataParallelOptions::zero_stage = 3");
  if (!options.flat)
    refuse(" with DataParallelOptions::layout = ParameterLayout::Dim0",
           "Wrap::Manual: costs are those of units that are stored flat; set Wrap::Manual, or ParameterLayout::Flat");
  if (tune.machine.empty())
    refuse(" has no machine to count costs on",
           "a machine by name or its file in TuneOptions::machine, such as dgx_h100");
}

// Whether the plan that the rest of the pipeline makes of a schedule fits, with addresses.
bool plan_fits(const ir::Graph& graph, const StepProfile& profile, const Schedule& schedule, bool with_order,
               const passes::PipelineOptions& options, double memory) {
  ir::Graph copy = graph.clone();
  write_units(copy, profile, schedule, with_order);
  passes::PipelineOptions quiet = options;
  quiet.observer = {};
  quiet.measure = {};
  std::optional<plan::StorageLayout> layout;
  passes::run_with_units(copy, quiet, layout);
  const auto kernels = cost::form_kernels(copy, profile.machine, cost::Execution::Fused);
  plan::MemoryOptions plan = plan::memory_options(copy, kernels);
  plan.enough_bytes = static_cast<int64_t>(memory);
  return static_cast<double>(plan::plan_memory(copy, plan).peak()) <= memory;
}

}  // namespace

double memory_of(const TuneOptions& tune, const cost::Machine& machine) {
  return tune.memory_gib > 0 ? tune.memory_gib * (1 << 30) : machine.memory_bytes;
}

Schedule choose_units(const StepProfile& profile, const Schedule& named, const TuneOptions& tune, double memory,
                      const std::function<bool(const Schedule&)>& fits) {
  // A profile counts live bytes, to some per cent; addresses need a little more.
  const auto budget = static_cast<int64_t>(0.95 * memory);
  Schedule greedy = greedy_units(profile, budget);
  if (tune.choose_reshard) keep_what_fits(profile, greedy, budget);
  if (tune.wrap == Wrap::Auto) return greedy;
  return search(profile, named, greedy, {.budget_bytes = budget, .choose_reshard = tune.choose_reshard}, memory, fits);
}

void write_units(ir::Graph& graph, const StepProfile& profile, const Schedule& schedule, bool with_order) {
  std::map<std::string, std::pair<std::string, const UnitChoice*>> choice_of;
  for (const UnitChoice& unit : schedule)
    for (size_t i = unit.first; i < unit.end; ++i)
      choice_of[profile.params[i].name] = {profile.params[unit.first].name, &unit};
  for (const auto& op : graph.ops()) {
    if (!op->is("param")) continue;
    const auto& [name, unit] = choice_of.at(op->attr<std::string>("name"));
    op->attrs["unit"] = name;
    op->attrs["reason"] = std::string(to_string(unit->reason));
    if (unit->keep) op->attrs["keep"] = true;
    if (with_order) passes::write_schedule(*op, unit->order);
  }
}

Schedule read_units(const StepProfile& profile, const std::map<std::string, const ir::Op*>& param_of) {
  Schedule schedule =
      named_units(profile, [&](const std::string& name) { return param_of.at(name)->attr<std::string>("unit"); });
  for (UnitChoice& unit : schedule) {
    const ir::Op& param = *param_of.at(profile.params[unit.first].name);
    unit.order = passes::read_schedule(&param, {});
    unit.keep = param.has_attr("keep") && param.attr<bool>("keep");
    if (param.has_attr("reason")) unit.reason = parse_reason(param.attr<std::string>("reason"));
  }
  return schedule;
}

Tuned run_pipeline(ir::Graph& graph, const passes::PipelineOptions& options, const TuneOptions& tune,
                   std::optional<plan::StorageLayout>& layout) {
  Tuned out;
  if (tune.wrap == Wrap::Manual || layout) {
    out.passes = passes::run_pipeline(graph, options, layout);
    return out;
  }
  check_options(options, tune);
  out.passes = passes::run_before_units(graph, options);
  const cost::Machine machine = cost::load_machine(tune.machine);
  StepProfile profile = profile_step(graph, machine, cost::Execution::Fused);
  profile.max_gather_bytes = options.prefetch.max_bytes;
  if (!profile.params.empty()) {
    const double memory = memory_of(tune, machine);
    const bool with_order = tune.wrap == Wrap::Search;
    const auto unit_of = passes::units_by_name(graph, options.wrap);
    const Schedule named = named_units(profile, [&](const std::string& name) { return unit_of.at(name); });
    const auto fits = [&](const Schedule& s) { return plan_fits(graph, profile, s, with_order, options, memory); };
    const Schedule schedule = choose_units(profile, named, tune, memory, fits);
    out.estimate = estimate(profile, schedule);
    write_units(graph, profile, schedule, with_order);
  }
  passes::PipelineOptions rest = options;
  rest.reshard.keep_last &= !tune.choose_reshard;
  std::ranges::move(passes::run_with_units(graph, rest, layout), std::back_inserter(out.passes));
  return out;
}

}  // namespace sfsdp::tune

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/tune.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/cost/device_memory.h"
#include "sfsdp/cost/product_cost.h"
#include "sfsdp/tune/estimate.h"
#include "sfsdp/tune/search.h"
#include "sfsdp/tune/simulated.h"

namespace sfsdp::tune {
namespace {

constexpr double kMargin = 0.99;  // of a budget that was found by what addresses lose, which differs by schedule

// The last unit is the first that backward reads: kept gathered, then those before it, as long as all fits.
void keep_what_fits(const StepProfile& profile, Schedule& schedule, int64_t budget) {
  for (size_t u = schedule.size(); u-- > 0;) {
    schedule[u].keep = true;
    if (estimate(profile, schedule).peak_bytes <= budget) continue;
    schedule[u].keep = false;
    break;
  }
}

// What search finds on the profile, or one of its starts: the simulator has the last word.
Schedule search(const StepProfile& profile, Schedule named, const Schedule& greedy, SearchOptions options,
                double memory, const Simulate& simulate) {
  named.back().keep = options.choose_reshard;  // as pass reshard does with units by name
  const auto peak_of = [&](const Schedule& s) { return estimate(profile, s).peak_bytes; };
  std::vector<Schedule> tried;
  std::vector<passes::StepFigures> steps;
  const auto attempt = [&](Schedule schedule) {
    steps.push_back(simulate(schedule));
    tried.push_back(std::move(schedule));
    return static_cast<double>(steps.back().peak_bytes) <= memory;
  };
  const std::vector<Schedule> starts = {std::move(named), greedy};
  // Where a start needs more and still fits, so may others: search is not to be slower for its caution.
  for (const Schedule& start : starts)
    if (attempt(start)) options.budget_bytes = std::max(options.budget_bytes, peak_of(start));
  if (!attempt(search_units(profile, starts, options)) && static_cast<double>(peak_of(tried.back())) <= memory) {
    // Units of all sizes, kept or not, leave holes between addresses: by as much less is to be alive.
    const auto state = static_cast<double>(profile.state_bytes);
    const double loose =
        (static_cast<double>(steps.back().peak_bytes) - state) / (static_cast<double>(peak_of(tried.back())) - state);
    options.budget_bytes = static_cast<int64_t>(state + kMargin * (memory - state) / loose);
    options.evaluations /= 2;  // from what was found
    attempt(search_units(profile, tried, options));
  }
  const auto best =
      std::ranges::min_element(steps, [&](const auto& a, const auto& b) { return is_better(a, b, memory); });
  return tried[static_cast<size_t>(best - steps.begin())];
}

void check_options(const passes::PipelineOptions& options, const TuneOptions& tune) {
  const auto refuse = [&](const char* why, const char* expected) {
    const char* wrap = tune.wrap == Wrap::Auto ? "Wrap::Auto" : "Wrap::Search";
    throw UserError(concat("TuneOptions::wrap = ", wrap, why, "\n  expected ", expected));
  };
  if (options.gather_once)
    refuse(" at DataParallelOptions::zero_stage 1 or 2",
           "Wrap::Manual: costs are those of gathers where parameters are read, and here one serves the whole step; set"
           " Wrap::Manual, or DataParallelOptions::zero_stage = 3");
  if (!options.flat)
    refuse(" with DataParallelOptions::layout = ParameterLayout::Dim0",
           "Wrap::Manual: costs are those of units that are stored flat; set Wrap::Manual, or ParameterLayout::Flat");
  if (tune.machine.empty())
    refuse(" has no machine to count costs on",
           "a machine by name or its file in TuneOptions::machine, such as dgx_h100");
}

// With what passes need of the machine: they read none.
passes::PipelineOptions on_machine(passes::PipelineOptions options, const TuneOptions& tune, const ir::Graph& graph) {
  const auto product = std::ranges::find_if(graph.ops(), [](const auto& op) { return cost::flops_of(*op) > 0; });
  if (!tune.machine.empty() && options.remat.mode == passes::RematMode::MemoryBudget && product != graph.ops().end())
    options.remat.flops_per_byte = cost::flops_per_byte(**product, cost::load_machine(tune.machine, tune.attention));
  return options;
}

// The step that the rest of the pipeline makes of a schedule.
passes::StepFigures simulate_with(const ir::Graph& graph, const StepProfile& profile, const Schedule& schedule,
                                  const passes::PipelineOptions& rest, double memory) {
  ir::Graph copy = graph.clone();
  write_units(copy, profile, schedule);
  passes::PipelineOptions quiet = rest;
  quiet.observer = {};
  quiet.measure = {};
  std::optional<plan::StorageLayout> layout;
  passes::run_with_units(copy, quiet, layout);
  return simulated(copy, profile.machine, static_cast<int64_t>(memory));
}

}  // namespace

double memory_of(const TuneOptions& tune, const cost::Machine& machine, const std::vector<ir::MeshAxis>& mesh) {
  if (tune.memory_gib > 0) return tune.memory_gib * (1 << 30);
  return machine.memory_bytes - static_cast<double>(cost::bytes_outside(machine, mesh));
}

passes::PipelineOptions options_with_units(passes::PipelineOptions options, const TuneOptions& tune) {
  options.reshard.keep_last &= tune.wrap == Wrap::Manual || !tune.choose_reshard;
  return options;
}

Schedule choose_units(const StepProfile& profile, const Schedule& named, const TuneOptions& tune, double memory,
                      const Simulate& simulate) {
  // A profile counts live bytes, to some per cent; addresses need a little more.
  const auto budget = static_cast<int64_t>(0.95 * memory);
  Schedule greedy = greedy_units(profile, budget);
  if (tune.choose_reshard) keep_what_fits(profile, greedy, budget);
  if (tune.wrap == Wrap::Auto) return greedy;
  return search(profile, named, greedy, {.budget_bytes = budget, .choose_reshard = tune.choose_reshard}, memory,
                simulate);
}

void read_options(StepProfile& profile, const passes::PipelineOptions& options) {
  const auto& [depth, forward, backward, max_bytes] = options.prefetch;
  profile.max_gather_bytes = max_bytes;
  profile.order = {depth, depth, forward, backward, options.sink.depth, options.sink.next};
  const auto last = std::ranges::max_element(profile.params, {}, &ParamProfile::fwd_last);
  if (options.reshard.keep_last) profile.kept = last - profile.params.begin();
}

void write_units(ir::Graph& graph, const StepProfile& profile, const Schedule& schedule) {
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
    passes::write_schedule(*op, unit->order);
  }
}

Schedule read_units(const StepProfile& profile, const std::map<std::string, const ir::Op*>& param_of) {
  Schedule schedule =
      named_units(profile, [&](const std::string& name) { return param_of.at(name)->attr<std::string>("unit"); });
  for (UnitChoice& unit : schedule) {
    const ir::Op& param = *param_of.at(profile.params[unit.first].name);
    unit.order = passes::read_schedule(&param, profile.order);
    unit.keep = param.has_attr("keep") && param.attr<bool>("keep");
    if (param.has_attr("reason")) unit.reason = parse_reason(param.attr<std::string>("reason"));
  }
  return schedule;
}

Tuned run_pipeline(ir::Graph& graph, passes::PipelineOptions options, const TuneOptions& tune,
                   std::optional<plan::StorageLayout>& layout) {
  options = on_machine(std::move(options), tune, graph);
  Tuned out;
  if (tune.wrap == Wrap::Manual || layout) {
    out.passes = passes::run_pipeline(graph, options, layout);
    return out;
  }
  check_options(options, tune);
  out.passes = passes::run_before_units(graph, options);
  const cost::Machine machine = cost::load_machine(tune.machine, tune.attention);
  const passes::PipelineOptions rest = options_with_units(options, tune);
  StepProfile profile = profile_step(graph, machine);
  read_options(profile, rest);
  if (!profile.params.empty()) {
    const double memory = memory_of(tune, machine, graph.mesh);
    const auto unit_of = passes::units_by_name(graph, options.wrap);
    const Schedule named = named_units(profile, [&](const std::string& name) { return unit_of.at(name); });
    const auto simulate = [&](const Schedule& s) { return simulate_with(graph, profile, s, rest, memory); };
    const Schedule schedule = choose_units(profile, named, tune, memory, simulate);
    out.estimate = estimate(profile, schedule);
    write_units(graph, profile, schedule);
  }
  std::ranges::move(passes::run_with_units(graph, rest, layout), std::back_inserter(out.passes));
  return out;
}

}  // namespace sfsdp::tune

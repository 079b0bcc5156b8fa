// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/tune.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/cost/device_memory.h"
#include "sfsdp/cost/product_cost.h"
#include "sfsdp/cost/target.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/tune/search.h"
#include "sfsdp/tune/simulated.h"
#include "sfsdp/tune/unit_memory.h"

namespace sfsdp::tune {
namespace {

// Operations of all graphs that search simulates: some seconds of one core for a large step, many schedules of a small one.
constexpr int64_t kSimulatedOps = 200'000, kFewest = 12, kMost = 1000;

// What the greedy rule may fill of the memory, at first and where a plan misses the memory. The rule leaves out what is
// gathered early, and a profile what addresses lose: 70B on 16 devices took 1.03 of the memory with the first share, 0.96 with
// the second, 0.91 with the last, whose units are single parameters.
constexpr std::array<double, 4> kShares = {0.95, 0.9, 0.85, 0.8};

// A profile that needs less than the first share of the memory surely fits, one that needs more than the second surely does not:
// no plan need tell. Plans took 0.90 to 1.10 of their profiles for 8B, 70B and 405B on 8 to 256 devices, and 1.54 at most for
// steps of large activations (search_test.cc).
constexpr double kSurelyFits = 0.6, kSurelyMisses = 1.25;

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

// What the greedy rule makes of less and less memory, and at last units by name: where those by Manual fit, one of these does.
// One alone where no plan need tell which fits.
std::vector<Schedule> greedy_schedules(const StepProfile& profile, const Schedule& named, bool choose_reshard,
                                       double memory) {
  std::vector<Schedule> schedules;
  for (const double share : kShares) {
    const auto budget = static_cast<int64_t>(share * memory);
    Schedule greedy = greedy_units(profile, budget);
    if (choose_reshard) keep_what_fits(profile, greedy, budget);
    if (schedules.empty() || greedy != schedules.back()) schedules.push_back(std::move(greedy));
  }
  schedules.push_back(named);
  const auto needs = [&](const Schedule& s) { return static_cast<double>(peak_of_units(profile, s)) / memory; };
  const auto misses = [&](const Schedule& s) { return needs(s) > kSurelyMisses; };
  if (needs(schedules[0]) < kSurelyFits || std::ranges::all_of(schedules, misses)) schedules.resize(1);
  return schedules;
}

// What the passes made of a schedule.
struct PlannedUnits {
  Schedule schedule;
  ir::Graph graph;
  std::vector<passes::PassReport> reports;
  std::optional<plan::BucketLayouts> layout;
  int64_t peak_bytes = 0;
};

// The first schedule whose plan fits the memory; the one that needs least where none does.
PlannedUnits first_that_fits(const ir::Graph& graph, const passes::PipelineOptions& options, const UnitTrials& trials,
                             const std::vector<Schedule>& schedules) {
  const auto memory = static_cast<int64_t>(trials.memory());
  PlannedUnits best;
  for (const Schedule& schedule : schedules) {
    PlannedUnits next = {schedule, graph.clone(), {}, {}, 0};
    write_units(next.graph, trials.profile(), schedule);
    next.reports = passes::run_with_units(next.graph, options, next.layout);
    const cost::Target target = cost::target_of(trials.profile().machine);
    next.peak_bytes = plan::plan_memory(next.graph, {.target = target, .enough_bytes = memory}).peak();
    if (best.schedule.empty() || next.peak_bytes < best.peak_bytes) best = std::move(next);
    if (best.peak_bytes <= memory) break;
  }
  return best;
}

}  // namespace

passes::PipelineOptions on_machine(passes::PipelineOptions options, const TuneOptions& tune, const ir::Graph& graph) {
  const auto product = std::ranges::find_if(graph.ops(), [](const auto& op) { return cost::flops_of(*op) > 0; });
  if (!tune.machine.empty() && options.remat.mode == passes::RematMode::MemoryBudget && product != graph.ops().end())
    options.remat.flops_per_byte = cost::flops_per_byte(**product, cost::load_machine(tune.machine, tune.attention));
  return options;
}

double memory_of(const TuneOptions& tune, const cost::Machine& machine, const std::vector<ir::MeshAxis>& mesh) {
  if (tune.memory_gib > 0) return tune.memory_gib * (1 << 30);
  return machine.memory_bytes - static_cast<double>(cost::bytes_outside(machine, mesh));
}

UnitTrials::UnitTrials(const ir::Graph& graph, passes::PipelineOptions options, const TuneOptions& tune)
    : graph_(graph), options_(std::move(options)) {
  options_.reshard.keep_last &= tune.wrap == Wrap::Manual || !tune.choose_reshard;
  options_.observer = {};
  options_.measure = {};
  const cost::Machine machine = cost::load_machine(tune.machine, tune.attention);
  memory_ = memory_of(tune, machine, graph.mesh);
  profile_ = profile_step(graph, machine);
  const auto& [depth, forward, backward, max_bytes] = options_.prefetch;
  profile_.max_gather_bytes = max_bytes;
  profile_.order = {depth, depth, forward, backward, options_.sink.depth, options_.sink.next};
  const auto last = std::ranges::max_element(profile_.params, {}, &ParamProfile::fwd_last);
  if (options_.reshard.keep_last) profile_.kept = last - profile_.params.begin();
}

passes::StepFigures UnitTrials::simulate(const Schedule& schedule) const {
  ir::Graph copy = graph_.clone();
  write_units(copy, profile_, schedule);
  std::optional<plan::BucketLayouts> layout;
  passes::run_with_units(copy, options_, layout);
  return simulated(copy, profile_.machine, static_cast<int64_t>(memory_));
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

std::vector<passes::PassReport> run_pipeline(ir::Graph& graph, passes::PipelineOptions options, const TuneOptions& tune,
                                             std::optional<plan::BucketLayouts>& layout) {
  options = on_machine(std::move(options), tune, graph);
  if (tune.wrap == Wrap::Manual || layout) return passes::run_pipeline(graph, options, layout);
  check_options(options, tune);
  std::vector<passes::PassReport> reports = passes::run_before_units(graph, options);
  const UnitTrials trials(graph, options, tune);
  const StepProfile& profile = trials.profile();
  options.reshard = trials.options().reshard;
  if (!profile.params.empty()) {
    const auto unit_of = passes::units_by_name(graph, options.wrap);
    Schedule named = named_units(profile, [&](const std::string& name) { return unit_of.at(name); });
    named.back().keep = tune.choose_reshard;  // as pass reshard does with units by name
    const std::vector<Schedule> schedules = greedy_schedules(profile, named, tune.choose_reshard, trials.memory());
    Schedule chosen = schedules[0];
    if (schedules.size() > 1) {
      PlannedUnits planned = first_that_fits(graph, options, trials, schedules);
      if (tune.wrap == Wrap::Auto) {
        graph = std::move(planned.graph);
        layout = std::move(planned.layout);
        std::ranges::move(planned.reports, std::back_inserter(reports));
        return reports;
      }
      chosen = std::move(planned.schedule);
    }
    if (tune.wrap == Wrap::Search) {
      const auto simulations = std::clamp(kSimulatedOps / std::ssize(graph.ops()), kFewest, kMost);
      chosen = search_units(profile, {std::move(named), std::move(chosen)},
                            {trials.memory(), simulations, tune.choose_reshard},
                            [&](const Schedule& schedule) { return trials.simulate(schedule); });
    }
    write_units(graph, profile, chosen);
  }
  std::ranges::move(passes::run_with_units(graph, options, layout), std::back_inserter(reports));
  return reports;
}

}  // namespace sfsdp::tune

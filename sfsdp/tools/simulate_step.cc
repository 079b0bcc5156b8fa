// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/simulate_step.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/pytorch/memory.h"
#include "sfsdp/train/config/config_resolve.h"

namespace sfsdp::tools {
namespace {

double jitter_of(const Request& request) {
  const std::string text = request.get("simulate.jitter", "0");
  const auto value = parse_double(text);
  if (!value || !(*value >= 0 && *value <= 100))
    throw UserError(concat("--simulate.jitter = ", text, "\n  expected a number from 0 to 100"));
  return *value;
}

cost::Machine machine_of(const Request& request) {
  if (!request.has("machine"))
    throw UserError("--machine is missing\n  expected a machine by name, such as dgx_h100, or its file");
  cost::Machine machine = cost::load_machine(request.get("machine", ""));
  cost::choose_attention(machine, choice_of(request, "simulate.attention", {"flash", "vendor", "triton"}),
                         "--simulate.attention");
  return machine;
}

cost::System system_of(const Request& request, cost::Execution execution) {
  static const std::vector<std::pair<std::string, cost::System>> kSystems = {{"sfsdp", cost::System::Own},
                                                                             {"fsdp2", cost::System::Fsdp2},
                                                                             {"fsdp1", cost::System::Fsdp1},
                                                                             {"traced", cost::System::Traced}};
  if (!request.has("simulate.system")) return cost::usual_system(execution);
  std::vector<std::string> names;
  for (const auto& [name, system] : kSystems) names.push_back(name);
  const std::string chosen = choice_of(request, "simulate.system", names);
  return std::ranges::find(kSystems, chosen, &std::pair<std::string, cost::System>::first)->second;
}

// A TorchTitan config that turns its compiler off means eager mode; --simulate.execution says otherwise.
std::string execution_of(const Request& request, const train::JobConfig& config) {
  const std::string given = choice_of(request, "simulate.execution", {"fused", "compile", "eager", "reference"});
  return config.asks_eager && !request.has("simulate.execution") ? "eager" : given;
}

std::vector<std::string> notes_of(const Request& request, const train::JobConfig& config) {
  std::vector<std::string> notes;
  for (const std::string& note : config.notes) {
    if (note.find("compile.enable") == std::string::npos)
      notes.push_back(note);
    else if (!request.has("simulate.execution"))
      notes.emplace_back(
          "compile.enable = false: simulated as PyTorch's FSDP2 in eager mode; --simulate.execution fused is"
          " our plan");
  }
  return notes;
}

sim::SimulateOptions options_of(const Request& request, const std::string& execution) {
  sim::SimulateOptions options;
  options.execution = cost::parse_execution(execution, "--simulate.execution");
  options.jitter = jitter_of(request);
  options.seed = static_cast<uint64_t>(whole_option(request, "simulate.seed", "0"));
  if (choice_of(request, "simulate.timelines", {"collapsed", "per_rank"}) == "per_rank")
    options.timelines = sim::Timelines::PerRank;
  options.system = system_of(request, options.execution);
  const std::string gathers = choice_of(request, "simulate.step_gathers", {"forward", "update", "broadcast"});
  if (gathers == "update") options.step_gathers = sim::StepGathers::Update;
  if (gathers == "broadcast") options.step_gathers = sim::StepGathers::Broadcast;
  return options;
}

// What PyTorch's allocator holds, where it is PyTorch that runs.
std::optional<sim::PyTorchOptions> pytorch_of(const Request& request, const train::JobConfig& config,
                                              const sim::SimulateOptions& simulated) {
  if (*simulated.system == cost::System::Own) return std::nullopt;
  const passes::RematOptions remat = train::remat_of(config.activation_checkpoint);
  sim::PyTorchOptions options;
  options.system = *simulated.system;
  options.compiled = simulated.execution == cost::Execution::Compile;
  options.save_list = remat.mode == passes::RematMode::Op;
  options.mm_again = remat.mm_again;
  options.keeps_whole_gradients = config.parallelism.zero_stage <= 1;
  const std::string loss = choice_of(request, "simulate.loss", {"separate", "kept", "fused"});
  options.loss = loss == "fused"  ? sim::PyTorchLoss::Fused
                 : loss == "kept" ? sim::PyTorchLoss::Kept
                                  : sim::PyTorchLoss::Separate;
  options.loss_chunks = std::max<int64_t>(whole_option(request, "simulate.loss_chunks", "1"), 1);
  return options;
}

}  // namespace

int64_t whole_option(const Request& request, const std::string& name, const std::string& fallback) {
  return number_of("--" + name, request.get(name, fallback), 0, std::numeric_limits<int64_t>::max());
}

SimulateSetup simulate_setup(const Request& request, const train::JobConfig& config) {
  SimulateSetup setup;
  setup.machine = machine_of(request);
  setup.execution = execution_of(request, config);
  setup.notes = notes_of(request, config);
  setup.options = options_of(request, setup.execution);
  setup.pytorch = pytorch_of(request, config, setup.options);
  const bool expandable = choice_of(request, "simulate.segments", {"expandable", "fixed"}) == "expandable";
  using Segments = plan::CachingAllocator::Segments;
  setup.segments = expandable ? Segments::Expandable : Segments::Fixed;
  setup.shows_allocated = choice_of(request, "simulate.memory", {"reserved", "allocated"}) == "allocated";
  return setup;
}

passes::FuseScope SimulateSetup::fuse_scope() const {
  switch (options.execution) {
    case cost::Execution::Eager: return passes::FuseScope::None;
    case cost::Execution::Compile: return passes::FuseScope::Module;
    case cost::Execution::Reference:
    case cost::Execution::Fused: break;
  }
  return passes::FuseScope::All;
}

plan::MemoryPlan reference_memory(const ir::Graph& decomposed) {
  plan::MemoryPlan plan = plan::plan_memory(decomposed, {.blocking = true});
  plan.arena_bytes = plan.live_bytes;
  return plan;
}

SimulateReport simulate_step(const ir::Graph& graph, plan::MemoryPlan memory, const SimulateSetup& setup,
                             const StepFacts& facts) {
  SimulateReport report;
  report.model = facts.model;
  report.mesh = facts.mesh;
  report.execution = setup.execution;
  report.notes = setup.notes;
  report.machine = setup.machine;
  report.world = facts.world;
  report.simulation = sim::simulate(graph, setup.machine, setup.options);
  report.memory = std::move(memory);
  if (setup.pytorch) report.pytorch = sim::pytorch_memory(graph, *setup.pytorch, setup.segments);
  report.shows_allocated = setup.shows_allocated;
  report.tokens_per_second = static_cast<double>(facts.tokens) / report.simulation.step_seconds;
  report.mfu = report.tokens_per_second * facts.flops_per_token / report.machine.peak_bf16;
  return report;
}

}  // namespace sfsdp::tools

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/simulate_step.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/device_memory.h"
#include "sfsdp/cost/target.h"
#include "sfsdp/passes/canonical/decompose.h"
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

cost::Machine machine_of(const Request& request, const train::JobConfig& config) {
  if (!request.has("machine"))
    throw UserError("--machine is missing\n  expected a machine by name, such as dgx_h100, or its file");
  return cost::load_machine(request.get("machine", ""), train::attention_of(config.model));
}

cost::System system_of(const Request& request, cost::Execution execution) {
  static const std::vector<std::pair<std::string, cost::System>> kSystems = {{"sfsdp", cost::System::Own},
                                                                             {"fsdp2", cost::System::Fsdp2},
                                                                             {"fsdp1", cost::System::Fsdp1},
                                                                             {"deepspeed3", cost::System::Fsdp2},
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
  return config.compile.enable == false && !request.has("simulate.execution") ? "eager" : given;
}

//   is_pytorch: the simulated system is one of PyTorch's
std::vector<std::string> notes_of(const Request& request, const train::JobConfig& config, bool is_pytorch) {
  std::vector<std::string> notes;
  const auto is_of = [](const std::string& note, const char* key) { return note.find(key) != std::string::npos; };
  for (const std::string& note : config.notes) {
    if (is_of(note, "compile.components") && is_pytorch) continue;  // says which loss is simulated
    if (!is_of(note, "compile.enable"))
      notes.push_back(note);
    else if (!request.has("simulate.execution"))
      notes.emplace_back(
          "compile.enable = false: simulated as PyTorch's FSDP2 in eager mode; --simulate.execution fused is"
          " our plan");
  }
  for (const char* option :
       {"simulate.loss", "simulate.loss_chunks", "simulate.memory", "simulate.segments", "simulate.accumulation"})
    if (!is_pytorch && request.has(option))
      notes.push_back(concat("--", option, " changes nothing: the memory is our plan's, not one of PyTorch's systems"));
  return notes;
}

constexpr std::array<std::pair<std::string_view, sim::PyTorchLoss>, 3> kLosses = {
    {{"separate", sim::PyTorchLoss::Separate}, {"kept", sim::PyTorchLoss::Kept}, {"fused", sim::PyTorchLoss::Fused}}};

// TorchTitan compiles the loss where it compiles anything, unless compile.components leave it out.
sim::PyTorchLoss loss_of(const Request& request, const train::JobConfig& config, cost::Execution execution) {
  const bool is_compiled = config.compile.loss && config.compile.enable.value_or(execution == cost::Execution::Compile);
  if (!request.has("simulate.loss")) return is_compiled ? sim::PyTorchLoss::Fused : sim::PyTorchLoss::Separate;
  const std::string chosen = choice_of(request, "simulate.loss", {"separate", "kept", "fused"});
  return std::ranges::find(kLosses, chosen, &std::pair<std::string_view, sim::PyTorchLoss>::first)->second;
}

// What PyTorch runs as several kernels, and twice: eager mode all of it; Inductor generates no code for complex numbers, and what
// stands outside of compiled blocks is as in eager mode.
cost::Composites composites_of(const Request& request, const train::JobConfig& config, cost::Execution execution) {
  const bool composite_norm = choice_of(request, "simulate.norm", {"composite", "fused"}) == "composite";
  const std::string rope = choice_of(request, "simulate.rope", {"complex", "real", "fused"});
  const bool separate_loss = loss_of(request, config, execution) != sim::PyTorchLoss::Fused;
  const bool foreach_update = choice_of(request, "simulate.update", {"fused", "foreach"}) == "foreach";
  const bool whole_blocks = choice_of(request, "simulate.checkpoint", {"early_stop", "whole"}) == "whole";
  const bool lists_products = train::remat_of(config.activation_checkpoint).mode == passes::RematMode::Op;
  const bool eager = execution == cost::Execution::Eager;
  if (!eager && execution != cost::Execution::Compile) return {};
  return {.norm = eager && composite_norm,
          .rope = rope != "fused" && (eager || rope == "complex"),
          .real_rope = rope != "fused" && eager,
          .loss = separate_loss,
          .update = foreach_update,
          .heads = true,
          .whole_blocks = eager && whole_blocks && !lists_products,
          .product_sums = choice_of(request, "simulate.accumulation", {"kernel", "product"}) == "product"};
}

sim::StepGathers step_gathers_of(const Request& request) {
  static const std::vector<std::pair<std::string, sim::StepGathers>> kWords = {
      {"forward", sim::StepGathers::Forward},
      {"update", sim::StepGathers::Update},
      {"broadcast", sim::StepGathers::BroadcastUpdate},
      {"broadcast_forward", sim::StepGathers::BroadcastForward}};
  std::vector<std::string> words;
  for (const auto& [word, gathers] : kWords) words.push_back(word);
  const std::string chosen = choice_of(request, "simulate.step_gathers", words);
  return std::ranges::find(kWords, chosen, &std::pair<std::string, sim::StepGathers>::first)->second;
}

sim::SimulateOptions options_of(const Request& request, const train::JobConfig& config, const std::string& execution) {
  sim::SimulateOptions options;
  options.execution = cost::parse_execution(execution, "--simulate.execution");
  options.jitter = jitter_of(request);
  options.seed = static_cast<uint64_t>(whole_option(request, "simulate.seed", "0"));
  if (choice_of(request, "simulate.timelines", {"collapsed", "per_rank"}) == "per_rank")
    options.timelines = sim::Timelines::PerRank;
  options.system = system_of(request, options.execution);
  options.composites = composites_of(request, config, options.execution);
  options.step_gathers = step_gathers_of(request);
  if (choice_of(request, "simulate.reductions", {"overlap", "block"}) == "block")
    options.reductions = sim::Reductions::Block;
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
  options.mm_again_of = remat.mm_again_of;
  options.save = remat.save;
  options.keeps_whole_gradients = config.parallelism.zero_stage <= 1;
  options.product_sums = simulated.composites.product_sums;
  options.loss = loss_of(request, config, simulated.execution);
  options.loss_chunks = std::max<int64_t>(whole_option(request, "simulate.loss_chunks", "1"), 1);
  return options;
}

}  // namespace

int64_t whole_option(const Request& request, const std::string& name, const std::string& fallback) {
  return number_of("--" + name, request.get(name, fallback), 0, std::numeric_limits<int64_t>::max());
}

SimulateSetup simulate_setup(const Request& request, const train::JobConfig& config) {
  SimulateSetup setup;
  setup.machine = machine_of(request, config);
  setup.execution = execution_of(request, config);
  setup.options = options_of(request, config, setup.execution);
  if (setup.options.composites.product_sums && !cost::target_of(setup.machine).adds_in_products)
    throw UserError(concat("--simulate.accumulation = product on ", setup.machine.name,
                           "\n  expected kernel: no library of this machine adds a product of bf16 to a sum of f32"));
  setup.pytorch = pytorch_of(request, config, setup.options);
  if (request.get("simulate.system", "") == "deepspeed3") {
    setup.deepspeed = deepspeed_of(request, config);
    setup.options.reduce_bucket = setup.deepspeed->reduce_bucket;
    setup.pytorch->reduce_bucket = setup.deepspeed->reduce_bucket;
  }
  setup.notes = notes_of(request, config, setup.pytorch.has_value());
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

SimulateReport simulate_step(const ir::Graph& graph, plan::MemoryPlan memory, const SimulateSetup& setup,
                             const StepFacts& facts) {
  SimulateReport report;
  report.model = facts.model;
  report.mesh = facts.mesh;
  report.execution = setup.execution;
  report.notes = setup.notes;
  if (setup.pytorch)
    report.loss =
        std::ranges::find(kLosses, setup.pytorch->loss, &std::pair<std::string_view, sim::PyTorchLoss>::second)->first;
  report.machine = setup.machine;
  report.world = facts.world;
  report.outside_bytes = cost::bytes_outside(setup.machine, graph.mesh);
  report.simulation = sim::simulate(graph, setup.machine, setup.options);
  report.memory = std::move(memory);
  if (setup.pytorch) {
    const int64_t room = static_cast<int64_t>(report.machine.memory_bytes) - report.outside_bytes;
    report.pytorch = sim::pytorch_memory(graph, *setup.pytorch, setup.segments, room);
    report.allocator_seconds = cost::moving_seconds(report.pytorch->moved_bytes);
    if (report.counts_retries()) report.simulation.step_seconds += report.allocator_seconds;
  }
  report.shows_allocated = setup.shows_allocated;
  report.tokens_per_second = facts.tokens / report.simulation.step_seconds;
  report.mfu = report.tokens_per_second * facts.flops_per_token / report.machine.peak_bf16;
  return report;
}

SimulatedPlan simulate_step(const plan::StepPlan& plan, SimulateSetup setup, const StepFacts& facts) {
  if (setup.options.execution != cost::Execution::Reference) {
    setup.options.edges = &plan.edges;
    return {std::nullopt, simulate_step(plan.graph, plan.memory, setup, facts)};
  }
  SimulatedPlan out{passes::decomposed(plan.graph), {}};
  plan::MemoryPlan memory = plan::plan_memory(*out.executed, {.blocking = true});
  memory.arena_bytes = memory.live_bytes;
  out.report = simulate_step(*out.executed, std::move(memory), setup, facts);
  return out;
}

}  // namespace sfsdp::tools

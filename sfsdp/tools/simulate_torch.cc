// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/passes/bucket/wrap.h"
#include "sfsdp/passes/canonical/decompose.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/report/bucket_table.h"
#include "sfsdp/sim/report/html_report.h"
#include "sfsdp/sim/report/memory_timeline.h"
#include "sfsdp/sim/report/trace.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/tools/simulate_report.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::tools {
namespace {

double jitter_of(const Request& request) {
  const std::string text = request.get("simulate.jitter", "0");
  const auto value = parse_double(text);
  if (!value || !(*value >= 0 && *value <= 100))
    throw UserError(concat("--simulate.jitter = ", text, "\n  expected a number from 0 to 100"));
  return *value;
}

int64_t whole_of(const Request& request, const std::string& name, const std::string& fallback) {
  return number_of("--" + name, request.get(name, fallback), 0, std::numeric_limits<int64_t>::max());
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

sim::SimulateOptions options_of(const Request& request) {
  sim::SimulateOptions options;
  options.execution = cost::parse_execution(
      choice_of(request, "simulate.execution", {"fused", "compile", "eager", "reference"}), "--simulate.execution");
  options.jitter = jitter_of(request);
  options.seed = static_cast<uint64_t>(whole_of(request, "simulate.seed", "0"));
  if (choice_of(request, "simulate.timelines", {"collapsed", "per_rank"}) == "per_rank")
    options.timelines = sim::Timelines::PerRank;
  options.system = system_of(request, options.execution);
  return options;
}

// How much of a step one kernel may compute. The reference executor runs the ops of the decomposed graph one by one.
passes::FuseScope scope_of(cost::Execution execution) {
  switch (execution) {
    case cost::Execution::Eager: return passes::FuseScope::None;
    case cost::Execution::Compile: return passes::FuseScope::Module;
    case cost::Execution::Reference:
    case cost::Execution::Fused: break;
  }
  return passes::FuseScope::All;
}

plan::MemoryPlan memory_of(const ir::Graph& graph, const sim::SimulateOptions& simulated) {
  plan::MemoryPlan plan = plan::plan_memory(graph, {.blocking = simulated.execution == cost::Execution::Reference});
  if (const std::string wrong = plan::check_memory_plan(plan); !wrong.empty()) throw InternalError(wrong);
  return plan;
}

// What PyTorch's allocator holds, where it is PyTorch that runs.
std::optional<sim::PyTorchMemory> pytorch_memory_of(const Request& request, const train::JobConfig& config,
                                                    const ir::Graph& graph, const SimulateReport& report,
                                                    cost::System system) {
  if (system == cost::System::Own) return std::nullopt;
  const passes::RematOptions remat = train::remat_of(config.activation_checkpoint);
  sim::PyTorchOptions options;
  options.system = system;
  options.compiled = report.execution == "compile";
  options.save_list = remat.mode == passes::RematMode::Op;
  options.mm_again = remat.mm_again;
  const std::string loss = choice_of(request, "simulate.loss", {"separate", "kept", "fused"});
  options.loss = loss == "fused"  ? sim::PyTorchLoss::Fused
                 : loss == "kept" ? sim::PyTorchLoss::Kept
                                  : sim::PyTorchLoss::Separate;
  options.loss_chunks = std::max<int64_t>(whole_of(request, "simulate.loss_chunks", "1"), 1);
  const bool expandable = choice_of(request, "simulate.segments", {"expandable", "fixed"}) == "expandable";
  using Segments = plan::CachingAllocator::Segments;
  return sim::pytorch_memory(graph, options, expandable ? Segments::Expandable : Segments::Fixed);
}

void write_file(const Request& request, const std::string& option, const std::string& text) {
  const std::string path = request.get(option, "");
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file)
    throw UserError(concat("--", option, " ", path, " cannot be written\n  expected a file in a folder that exists"));
}

// What made each unit of the graph one.
std::map<std::string, std::string> rules_of(const ir::Graph& graph, const std::string& units) {
  std::vector<std::string> names;
  for (const auto& op : graph.ops()) {
    if (!op->is("param")) continue;
    if (!op->has_attr("unit")) return {};  // no buckets
    if (op->has_attr("members")) {
      const auto& members = op->attr<std::vector<std::string>>("members");
      names.insert(names.end(), members.begin(), members.end());
    } else {
      names.push_back(op->attr<std::string>("name"));
    }
  }
  return passes::wrap_rules(names, {.units = units});
}

std::string page_of(const SimulateReport& report, const ir::Graph& graph, const std::string& units) {
  sim::HtmlReport page;
  page.title = concat(report.model, " on ", report.world, " × ", report.machine.device);
  page.setup = report_setup(report);
  page.figures = report_figures(report);
  page.fits = report.fits();
  page.limit_bytes = static_cast<int64_t>(report.machine.memory_bytes);
  page.state_bytes = report.memory.state_bytes;
  page.buckets = sim::bucket_table(graph, report.simulation, rules_of(graph, units));
  return sim::html_report(page, report.simulation, sim::memory_over_time(graph, report.memory, report.simulation));
}

std::string module_of(const ir::Op* op, size_t depth) {
  if (!op) return "parameters and workspace";
  auto path = split(op->module_path, '.');
  if (path.size() > depth) path.resize(depth);
  return join(path, ".") + " " + std::string(ir::to_string(op->section)) + " " + op->opcode;
}

void print_peak(std::ostream& out, const SimulateReport& report, size_t depth) {
  std::vector<plan::Share> shares;
  if (report.pytorch) {
    std::map<std::string, int64_t> sums;
    for (const auto& [op, bytes] : report.pytorch->at_peak) sums[module_of(op, depth)] += bytes;
    for (const auto& [name, bytes] : sums) shares.push_back({name, bytes});
    std::ranges::stable_sort(shares, std::greater<>(), &plan::Share::bytes);
  } else {
    shares = plan::alive_at(report.memory, report.memory.peak_position,
                            [&](const ir::Value& v) { return module_of(v.producer(), depth); });
  }
  out << "Alive at the peak, by module to depth " << depth << ":\n";
  for (size_t i = 0; i < std::min<size_t>(shares.size(), 20); ++i)
    out << "  " << train::bytes_text(shares[i].bytes) << "  " << shares[i].name << "\n";
}

}  // namespace

int run_simulate(const Request& request, std::ostream& out, std::ostream&) {
  SimulateReport report;
  report.machine = machine_of(request);
  report.execution = request.get("simulate.execution", "fused");
  report.world = request.world;
  sim::SimulateOptions options = options_of(request);
  const train::JobConfig config = config_of(request);
  train::CompiledJob job = train::make_job(config, request.world, {.fuse = scope_of(options.execution)});
  const ir::Graph& compiled = job.program->training(job.example).graph;
  std::optional<ir::Graph> executed;
  if (options.execution == cost::Execution::Reference) executed = passes::decomposed(compiled);
  const ir::Graph& graph = executed ? *executed : compiled;
  report.model = config.model.name + " " + config.model.flavor;
  report.mesh = to_string(job.program->strategy().mesh);

  const auto start = std::chrono::steady_clock::now();
  report.simulation = sim::simulate(graph, report.machine, options);
  report.memory = memory_of(graph, options);
  // The reference executor allocates value by value: no arena, nothing lost between buffers.
  if (options.execution == cost::Execution::Reference) report.memory.arena_bytes = report.memory.live_bytes;
  report.pytorch = pytorch_memory_of(request, config, graph, report, *options.system);
  report.shows_allocated = choice_of(request, "simulate.memory", {"reserved", "allocated"}) == "allocated";
  const auto tokens = static_cast<double>(job.shares.local * job.shares.accumulation * config.training.seq_len);
  report.tokens_per_second = tokens / report.simulation.step_seconds;
  report.mfu = report.tokens_per_second * job.model.flops_per_token(config.training.seq_len) / report.machine.peak_bf16;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  if (request.has("trace")) {
    const auto memory = sim::memory_over_time(graph, report.memory, report.simulation);
    write_file(request, "trace", sim::chrome_trace(report.simulation, memory, report.memory.state_bytes));
  }
  if (request.has("html")) write_file(request, "html", page_of(report, graph, config.parallelism.fsdp_units));
  if (request.has("json")) {
    print_report_json(out, report);
    return 0;
  }
  out << "Model " << report.model << " on " << report.world << " × " << report.machine.device << " ("
      << report.machine.name << "), mesh " << report.mesh << ", " << report.execution << " execution, simulated in "
      << with_commas(seconds * 1e3, 0) << " ms\n";
  print_report(out, report);
  if (request.has("simulate.memory_depth"))
    print_peak(out, report, static_cast<size_t>(whole_of(request, "simulate.memory_depth", "1")));
  return 0;
}

}  // namespace sfsdp::tools

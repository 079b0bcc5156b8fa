// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
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
#include "sfsdp/tools/simulate_step.h"
#include "sfsdp/tools/sweep.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::tools {
namespace {

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

int run_simulate(const Request& request, std::ostream& out, std::ostream& err) {
  if (request.has("sweep")) return run_sweep(request, train::capture_job, out, err);
  const train::JobConfig config = config_of(request);
  const SimulateSetup setup = simulate_setup(request, config);
  train::CompiledJob job = train::make_job(config, request.world, {.fuse = setup.fuse_scope()});
  const ir::Graph& compiled = job.program->training(job.example).graph;
  std::optional<ir::Graph> executed;
  if (setup.options.execution == cost::Execution::Reference) executed = passes::decomposed(compiled);
  const ir::Graph& graph = executed ? *executed : compiled;

  const auto start = std::chrono::steady_clock::now();
  const SimulateReport report =
      simulate_step(graph, setup,
                    {.model = config.model.name + " " + config.model.flavor,
                     .mesh = to_string(job.program->strategy().mesh),
                     .world = request.world,
                     .tokens = job.shares.local * job.shares.accumulation * config.training.seq_len,
                     .flops_per_token = job.model.flops_per_token(config.training.seq_len)});
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
    print_peak(out, report, static_cast<size_t>(whole_option(request, "simulate.memory_depth", "1")));
  return 0;
}

}  // namespace sfsdp::tools

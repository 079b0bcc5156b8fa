// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/simulate_plan.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <ostream>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/target.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/passes/bucket/wrap.h"
#include "sfsdp/sim/report/bucket_table.h"
#include "sfsdp/sim/report/html_report.h"
#include "sfsdp/sim/report/memory_timeline.h"
#include "sfsdp/sim/report/trace.h"
#include "sfsdp/tools/plan_file.h"
#include "sfsdp/tools/simulate_report.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::tools {
namespace {

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
  if (report.pytorch)
    page.memory_name = "Our plan's memory, GiB";  // which buffers PyTorch has when, is not written down
  page.limit_bytes = report.room_bytes();
  page.state_bytes = report.memory.state_bytes;
  page.buckets = sim::bucket_table(graph, report.simulation, rules_of(graph, units));
  return sim::html_report(page, report.simulation, sim::memory_over_time(graph, report.memory, report.simulation));
}

std::string module_of(const ir::Op* op, size_t depth) {
  if (!op) return "parameters and workspace";
  auto path = split(op->module_path, '.');
  if (path.size() > depth) path.resize(depth);
  return join(path, ".") + " " + std::string(ir::to_string(op->section)) + " " + op->opcode.str();
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

void show_simulation(const Request& request, const SimulateSetup& setup, const plan::StepPlan& plan,
                     const StepFacts& facts, const std::string& units, std::ostream& out) {
  std::optional<int64_t> depth;
  if (request.has("simulate.memory_depth")) depth = whole_option(request, "simulate.memory_depth", "1");
  const auto start = std::chrono::steady_clock::now();
  const auto [executed, report] = simulate_step(plan, setup, facts);
  const ir::Graph& graph = executed ? *executed : plan.graph;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  if (request.has("trace")) {
    std::vector<sim::MemorySample> memory;  // of a plan: PyTorch's is another
    if (!report.pytorch) memory = sim::memory_over_time(graph, report.memory, report.simulation);
    write_text(sim::chrome_trace(report.simulation, memory, report.memory.state_bytes), request.get("trace"),
               "--trace");
  }
  if (request.has("html")) write_text(page_of(report, graph, units), request.get("html"), "--html");
  if (request.has("json")) {
    print_report_json(out, report);
    return;
  }
  out << "Model " << report.model << " on " << report.world << " × " << report.machine.device << " ("
      << report.machine.name << "), mesh " << report.mesh << ", " << report.execution << " execution, simulated in "
      << with_commas(seconds * 1e3, 0) << " ms\n";
  print_report(out, report);
  if (depth) print_peak(out, report, static_cast<size_t>(*depth));
}

// The plan has model, mesh and batch in it; only what kernels take is the config's to say.
void expect_no_keys(const Request& request) {
  std::vector<std::string> given;
  for (const std::string& arg : request.config_args) given.push_back(arg.substr(0, arg.find('=')));
  if (request.has("world")) given.emplace_back("--world");
  std::erase(given, "--model.attention");
  if (!given.empty())
    throw UserError(concat(join(given, ", "),
                           " with --plan\n  expected no key of a config but model.attention:"
                           " model, mesh and batch are the plan's"));
}

int run_simulate_plan(const Request& request, std::ostream& out, std::ostream& err) {
  expect_no_keys(request);
  SimulateSetup setup = simulate_setup(request, config_of(request));
  if (setup.fuse_scope() != passes::FuseScope::All)
    throw UserError(concat("--simulate.execution ", setup.execution,
                           " with --plan\n  expected fused or reference: the plan says which ops are one kernel"));
  const std::string path = request.get("plan");
  const plan::StepPlan plan = read_plan(path, "--plan");
  if (const std::string target = cost::target_of(setup.machine).name; plan.target.name != target)
    setup.notes.push_back(concat("planned for ", plan.target.name, ", simulated on ", target,
                                 ": a plan for it may have other kernels and memory"));
  if (!request.has("json"))
    for (const std::string& note : setup.notes) err << note << '\n';
  const DeviceMesh mesh(plan.graph.mesh);
  show_simulation(request, setup, plan, {.model = "of " + path, .mesh = to_string(mesh), .world = mesh.world_size()},
                  "", out);
  return 0;
}

}  // namespace sfsdp::tools

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/simulate.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <ostream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/registers.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/sim/trace.h"
#include "sfsdp/tools/request.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::tools {
namespace {

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

struct Report {
  sim::Simulation simulation;
  plan::MemoryPlan memory;
  double tokens_per_second = 0, mfu = 0;  // per device
  bool fits = false;
};

void print(std::ostream& out, const Report& r, const cost::Machine& machine) {
  const sim::Simulation& s = r.simulation;
  out << "Step " << fixed(s.step_seconds * 1e3, 2) << " ms, " << with_commas(r.tokens_per_second, 0)
      << " tokens/s per device, MFU " << fixed(100 * r.mfu, 2)
      << " % (6 N + 12 L H S flops a token, of the bf16 peak)\n"
      << "Compute " << fixed(s.compute_seconds * 1e3, 2) << " ms, exposed communication " << fixed(s.exposed() * 1e3, 2)
      << " ms\n";
  for (const auto& [kind, seconds] : s.communication_seconds)
    out << "  " << kind << ": " << train::bytes_text(static_cast<int64_t>(s.communicated_bytes.at(kind))) << ", "
        << fixed(seconds * 1e3, 2) << " ms, exposed "
        << fixed(s.exposed_seconds.contains(kind) ? s.exposed_seconds.at(kind) * 1e3 : 0.0, 2) << " ms\n";
  out << "Memory: state " << train::bytes_text(r.memory.state_bytes) << ", arena "
      << train::bytes_text(r.memory.arena_bytes) << " (live " << train::bytes_text(r.memory.live_bytes) << ", ×"
      << fixed(
             static_cast<double>(r.memory.arena_bytes) / static_cast<double>(std::max<int64_t>(r.memory.live_bytes, 1)),
             3)
      << "), peak " << train::bytes_text(r.memory.peak()) << " of "
      << train::bytes_text(static_cast<int64_t>(machine.memory_bytes)) << ": " << (r.fits ? "fits" : "out of memory")
      << "\n";
}

void print_json(std::ostream& out, const Report& r) {
  const sim::Simulation& s = r.simulation;
  const auto kinds = [&](const std::map<std::string, double>& by_kind) {
    std::string text = "{";
    for (const auto& [kind, value] : by_kind)
      text += concat(text.size() > 1 ? ", " : "", '"', kind, "\": ", shortest(value));
    return text + "}";
  };
  out << "{\"step_seconds\": " << shortest(s.step_seconds)
      << ", \"tokens_per_second\": " << shortest(r.tokens_per_second) << ", \"mfu\": " << shortest(r.mfu)
      << ", \"compute_seconds\": " << shortest(s.compute_seconds)
      << ", \"communication_seconds\": " << kinds(s.communication_seconds)
      << ", \"exposed_seconds\": " << kinds(s.exposed_seconds) << ", \"state_bytes\": " << r.memory.state_bytes
      << ", \"arena_bytes\": " << r.memory.arena_bytes << ", \"live_bytes\": " << r.memory.live_bytes
      << ", \"fits\": " << (r.fits ? "true" : "false") << "}\n";
}

double number_of(const Request& request, const std::string& name, double fallback) {
  if (!request.has(name)) return fallback;
  const std::string text = request.get(name, "");
  const auto value = parse_double(text);
  if (!value || !(*value >= 0)) throw UserError(concat("--", name, " ", text, "\n  expected a number, not negative"));
  return *value;
}

}  // namespace

int run_simulate(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) {
    out << "usage: sfsdp simulate --config F --machine M --world N [--execution fused|eager] [--attention "
           "flash|vendor]\n    [--jitter x] [--seed n] [--trace out.json] [--memory depth] [--json] [--section.key "
           "value ...]\n";
    return 0;
  }
  try {
    const Request request =
        parse_request(args, {"machine", "execution", "attention", "jitter", "seed", "trace", "memory"}, {"json"});
    if (!request.has("machine"))
      throw UserError("--machine is missing\n  expected a machine file, such as machines/dgx_h100.toml");
    cost::Machine machine = cost::load_machine(request.get("machine", ""));
    const std::string attention = request.get("attention", "flash");
    if (attention != "flash" && attention != "vendor")
      throw UserError(concat("--attention ", attention, "\n  expected flash or vendor"));
    if (attention == "vendor") machine.attention_efficiency = machine.vendor_attention_efficiency;
    const std::string execution = request.get("execution", "fused");
    if (execution != "fused" && execution != "eager")
      throw UserError(concat("--execution ", execution, "\n  expected fused or eager"));
    const train::JobConfig config = train::load_config(request.config_args);
    train::CompiledJob job = train::make_job(config, request.world);
    const ir::Graph& graph = job.program->training(job.example).graph;

    const auto start = std::chrono::steady_clock::now();
    sim::SimulateOptions options;
    options.execution = execution == "fused" ? cost::Execution::Fused : cost::Execution::Eager;
    options.micro_batches = job.program->options().micro_batches;
    options.jitter = number_of(request, "jitter", 0);
    options.seed = static_cast<uint64_t>(number_of(request, "seed", 0));
    Report report;
    report.simulation = sim::simulate(graph, machine, options);
    plan::MemoryOptions memory;
    const auto in_registers = cost::values_in_registers(graph, report.simulation.kernels);
    memory.in_registers = [&](const ir::Value* value) { return in_registers.contains(value); };
    report.memory = plan::plan_memory(graph, memory);
    if (const std::string wrong = plan::check_memory_plan(report.memory); !wrong.empty()) throw InternalError(wrong);
    const auto tokens = static_cast<double>(job.shares.local * job.shares.accumulation * config.training.seq_len);
    report.tokens_per_second = tokens / report.simulation.step_seconds;
    report.mfu = report.tokens_per_second * job.model.flops_per_token(config.training.seq_len) / machine.peak_bf16;
    report.fits = static_cast<double>(report.memory.peak()) <= machine.memory_bytes;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    if (request.has("trace")) {
      std::ofstream file(request.get("trace", ""));
      file << sim::chrome_trace(report.simulation);
      if (!file) throw UserError(concat("--trace ", request.get("trace", ""), " cannot be written"));
    }
    if (request.has("json")) {
      print_json(out, report);
      return 0;
    }
    out << "Model " << config.model.name << " " << config.model.flavor << " on " << request.world << " × "
        << machine.device << " (" << machine.name << "), mesh " << to_string(job.program->strategy().mesh) << ", "
        << execution << " execution, simulated in " << with_commas(seconds * 1e3, 0) << " ms\n";
    print(out, report, machine);
    if (request.has("memory")) {
      out << "Alive at the peak, by module to depth " << request.get("memory", "") << ":\n";
      const auto depth = static_cast<size_t>(number_of(request, "memory", 1));
      const auto shares = plan::alive_at(report.memory, report.memory.peak_position, [&](const ir::Value& v) {
        auto path = split(v.producer()->module_path, '.');
        if (path.size() > depth) path.resize(depth);
        return join(path, ".") + " " + std::string(ir::to_string(v.producer()->section)) + " " + v.producer()->opcode;
      });
      for (size_t i = 0; i < std::min<size_t>(shares.size(), 20); ++i)
        out << "  " << train::bytes_text(shares[i].bytes) << "  " << shares[i].name << "\n";
    }
    return 0;
  } catch (const std::exception& error) {
    err << "error: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace sfsdp::tools

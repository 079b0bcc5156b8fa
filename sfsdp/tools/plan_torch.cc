// SPDX-License-Identifier: BSD-3-Clause

#include <cstdio>
#include <fstream>
#include <map>
#include <ostream>
#include <sstream>
#include <stdexcept>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/passes/overlap/schedule.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/plan_summary.h"
#include "sfsdp/tune/estimate.h"
#include "sfsdp/tune/explain.h"
#include "sfsdp/tune/search.h"

namespace sfsdp::tools {
namespace {

std::string ms(double seconds, bool sign = false) {
  char text[64];
  std::snprintf(text, sizeof text, sign ? "%+.3f ms" : "%.3f ms", seconds * 1e3);
  return text;
}

void verify_or_throw(const plan::StepPlan& plan, const plan::VerifyOptions& options = {}) {
  const auto errors = plan::verify_plan(plan, options);
  if (!errors.empty()) throw std::runtime_error("the plan may not run:\n" + join(errors, "\n"));
}

void print_summary(std::ostream& out, const plan::StepPlan& plan) {
  out << "Plan " << hex(plan::hash(plan)) << ": " << plan.graph.ops().size() << " ops, verified\n";
  for (const plan::CommLane& lane : plan.lanes)
    out << "  lane " << (lane.axes.empty() ? "of one rank" : join(lane.axes, ",")) << ": " << lane.collectives.size()
        << " collectives\n";
  const plan::MemoryPlan& m = plan.memory;
  out << "  memory: state " << train::bytes_text(m.state_bytes) << ", arena " << train::bytes_text(m.arena_bytes)
      << ", " << m.buffers.size() << " buffers, most alive at op " << m.peak_position << "\n";
}

void print_json(std::ostream& out, const plan::StepPlan& plan) {
  size_t collectives = 0;
  for (const plan::CommLane& lane : plan.lanes) collectives += lane.collectives.size();
  const plan::MemoryPlan& m = plan.memory;
  out << "{\"hash\": \"" << hex(plan::hash(plan)) << "\", \"ops\": " << plan.graph.ops().size()
      << ", \"lanes\": " << plan.lanes.size() << ", \"collectives\": " << collectives
      << ", \"buffers\": " << m.buffers.size() << ", \"state_bytes\": " << m.state_bytes
      << ", \"arena_bytes\": " << m.arena_bytes << ", \"live_bytes\": " << m.live_bytes << "}\n";
}

int check_file(const std::string& path, std::ostream& out) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file)
    throw UserError(concat("--check ", path, " cannot be read\n  expected a file that sfsdp plan --out wrote"));
  const plan::StepPlan plan = plan::parse_plan(text.str(), path);
  verify_or_throw(plan);
  print_summary(out, plan);
  return 0;
}

// The units of the plan on the profile of the same step.
tune::Schedule schedule_of(const ir::Graph& graph, const tune::StepProfile& profile) {
  std::map<std::string, const ir::Op*> unit_of;
  for (const auto& op : graph.ops())
    if (op->is("param") && op->has_attr("members"))
      for (const std::string& member : op->attr<std::vector<std::string>>("members")) unit_of[member] = op.get();
  for (const tune::ParamProfile& p : profile.params)
    if (!unit_of.contains(p.name))
      throw UserError("--explain: parameters are in no flat units\n  expected parallelism.fsdp_layout = flat");
  return tune::read_units(profile, unit_of);
}

void explain(std::ostream& out, const Request& request, const Program::Variant& variant, const cost::Machine& machine) {
  const ir::Graph& graph = variant.graph;
  // The same step with each parameter by itself.
  train::JobConfig config = config_of(request);
  if (config.activation_checkpoint.mode == "auto") {  // what it chose for this plan
    config.activation_checkpoint.mode = passes::to_string(variant.remat.options.mode);
    config.activation_checkpoint.memory_budget = variant.remat.options.memory_budget;
  }
  config.parallelism.fsdp_layout = "dim0";
  config.parallelism.fsdp_wrap = "manual";
  config.debug.disable_pass = passes::overlap_passes();
  for (const char* pass : {"reshard", "copy_buckets"}) config.debug.disable_pass.emplace_back(pass);
  train::CompiledJob single = train::make_job(config, request.world);
  const auto profile = tune::profile_step(single.program->training(single.example).graph, machine);
  const auto schedule = schedule_of(graph, profile);
  const auto now = tune::estimate(profile, schedule);
  const std::string path = request.get("explain", "");
  const auto units = tune::explain_units(profile, schedule, path);
  if (units.empty()) {
    std::vector<std::string> names;
    for (const auto& p : profile.params) names.push_back(p.name);
    throw UserError(concat("--explain ", path, " is the path of no parameter\n  expected a module path",
                           did_you_mean(path, names)));
  }
  out << "Step " << ms(now.seconds) << ", exposed communication " << ms(now.exposed) << ", peak "
      << train::bytes_text(now.peak_bytes) << ", estimated on " << machine.name << "\n";
  for (const tune::UnitExplanation& e : units) {
    out << "Unit of " << e.params << " parameters, " << e.first << " to " << e.last << "\n"
        << "  ends here: " << e.reason << "\n"
        << "  gather " << train::bytes_text(static_cast<int64_t>(e.gathered_bytes)) << " in " << ms(e.gather_seconds)
        << ", under " << ms(e.forward_cover) << " of compute in forward\n"
        << "  reduction " << train::bytes_text(static_cast<int64_t>(e.reduced_bytes)) << " in " << ms(e.reduce_seconds)
        << "; compute of the unit after it in backward " << ms(e.backward_cover) << "\n"
        << "  what would change if it were\n";
    for (const tune::Alternative& a : e.alternatives)
      out << "    " << a.change << ": step " << ms(a.seconds, true) << ", peak " << (a.bytes < 0 ? "-" : "+")
          << train::bytes_text(std::abs(a.bytes)) << "\n";
  }
}

}  // namespace

int run_plan(const Request& request, std::ostream& out, std::ostream&) {
  if (request.has("check")) return check_file(request.get("check", ""), out);
  train::CompiledJob job = train::make_job(config_of(request), request.world);
  const Program::Variant& variant = job.program->training(job.example);
  const ir::Graph& graph = variant.graph;
  if (request.has("explain")) {
    if (!request.has("machine")) throw UserError("--explain needs --machine\n  expected --machine M, such as dgx_h100");
    explain(out, request, variant, cost::load_machine(request.get("machine", "")));
    return 0;
  }
  const plan::StepPlan plan = plan::make_plan(graph);
  verify_or_throw(plan, {.prefetch_bytes = job.program->options().pipeline.prefetch.max_bytes});
  if (request.has("out")) {
    const std::string path = request.get("out", "");
    std::ofstream file(path, std::ios::binary);
    file << plan::print(plan);
    file.close();
    if (!file) throw UserError(concat("--out ", path, " cannot be written\n  expected a file in a folder that exists"));
  }
  if (request.has("json"))
    print_json(out, plan);
  else
    print_summary(out, plan);
  return 0;
}

}  // namespace sfsdp::tools

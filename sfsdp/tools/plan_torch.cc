// SPDX-License-Identifier: BSD-3-Clause

#include <cstdio>
#include <map>
#include <optional>
#include <ostream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/compile/complete_step.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/target.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/tools/explain_partition.h"
#include "sfsdp/tools/explain_plan.h"
#include "sfsdp/tools/plan_file.h"
#include "sfsdp/tools/plan_search.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/config/step_setup.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/plan_summary.h"
#include "sfsdp/tune/explain.h"
#include "sfsdp/tune/tune.h"

namespace sfsdp::tools {
namespace {

std::string ms(double seconds, bool sign = false) {
  char text[64];
  std::snprintf(text, sizeof text, sign ? "%+.3f ms" : "%.3f ms", seconds * 1e3);
  return text;
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

void explain_units(std::ostream& out, const Request& request, const Program::Variant& variant,
                   const cost::Machine& machine) {
  const train::JobConfig config = config_of(request);
  train::StepSetup setup = train::step_setup(config, request.world);
  setup.options.target = cost::target_of(machine);
  setup.options.tune.machine = request.get("machine");
  setup.options.pipeline.remat = variant.remat.options;  // what was chosen for this plan
  // The same step up to the choice of its units.
  train::CapturedJob capture = train::capture_job(config);
  step::place_step(capture.graph, setup.strategy, setup.options, true, capture.half_precision);
  const passes::PipelineOptions pipeline =
      tune::on_machine(step::pipeline_of(setup.strategy, setup.options.pipeline, setup.options.target),
                       setup.options.tune, capture.graph);
  passes::run_before_units(capture.graph, pipeline);
  const tune::UnitTrials trials(capture.graph, pipeline, setup.options.tune);
  const tune::StepProfile& profile = trials.profile();
  const tune::Schedule schedule = schedule_of(variant.graph, profile);
  const sim::Simulation step = sim::simulate(variant.graph, machine, {.edges = &variant.plan.edges});
  const std::string path = request.get("explain", "");
  const auto units = tune::explain_units(trials, schedule, path);
  if (units.empty()) {
    std::vector<std::string> names;
    for (const auto& p : profile.params) names.push_back(p.name);
    throw UserError(concat("--explain ", path, " is the path of no parameter\n  expected a module path",
                           did_you_mean(path, names)));
  }
  out << "Step " << ms(step.step_seconds) << ", exposed communication " << ms(step.exposed()) << ", peak "
      << train::bytes_text(variant.plan.memory.peak()) << ", simulated on " << machine.name << "\n";
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

int run_plan(const Request& request, std::ostream& out, std::ostream& err) {
  refuse_operands(request);
  if (request.has("search")) return run_search(request, train::capture_job, out, err);
  for (const GivenOption& option : request.own.options)
    if (option.name.starts_with("--simulate."))
      throw UserError(concat(option.name, " without --search\n  expected it with --search, or with sfsdp simulate"));
  train::JobConfig config = config_of(request);
  if (config.parallelism.fsdp_machine.empty()) config.parallelism.fsdp_machine = request.get("machine", "");
  std::optional<cost::Machine> machine;
  if (request.has("machine"))
    machine = cost::load_machine(request.get("machine", ""), train::attention_of(config.model));
  train::JobOptions options;
  if (machine) options.target = cost::target_of(*machine);
  train::CompiledJob job = train::make_job(config, request.world, options);
  if (const std::string note = train::note_of_products(config, options); !note.empty()) err << note << '\n';
  const Held<const Program::Variant> first = job.program->first();
  const Program::Variant& variant = *first;
  if (request.has("explain")) {
    train::CapturedJob capture = train::capture_job(config);
    const CompileOptions& compiled = job.program->options();
    step::StepOptions step;
    step.tune = compiled.tune;
    step.pipeline.remat = compiled.pipeline.remat;
    step.pipeline.fuse = compiled.pipeline.fuse;
    explain_partition(capture.graph, job.program->strategy(), step, out);
    if (machine) explain_units(out, request, variant, *machine);
    explain_plan(variant.plan, request.get("explain"), out);
    return 0;
  }
  verify_budget_or_throw(variant.plan, job.program->options().pipeline.prefetch.max_bytes);
  if (request.has("out")) write_text(plan::print(variant.plan), request.get("out", ""), "--out");
  show_plan(request, variant.plan,
            concat(train::title_of(config.model), " on ", request.world, request.world == 1 ? " rank" : " ranks"), out);
  return 0;
}

}  // namespace sfsdp::tools

// SPDX-License-Identifier: BSD-3-Clause
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/uncaptured.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/target.h"
#include "sfsdp/exported/describe.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/models/exported/exported_graph.h"
#include "sfsdp/tools/allocations.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::tools {
namespace {

struct Inspection {
  const train::JobConfig& config;
  const train::CompiledJob& job;
  const Program::Variant& variant;
  train::PlanSummary plan;
};

void print_text(std::ostream& out, const Inspection& i) {
  out << "Model " << train::title_of(i.config.model) << ": " << with_commas(i.job.program->num_parameters())
      << " parameters, " << with_commas(static_cast<int64_t>(i.job.model.flops_per_token(i.config.training.seq_len)))
      << " flops per token\n"
      << "Mesh " << to_string(i.job.program->strategy().mesh) << ", compiled for "
      << i.job.program->options().target.name << "\n"
      << "Captured in " << with_commas(i.variant.capture_ms, 0) << " ms, sharded and verified in "
      << with_commas(i.variant.complete_ms, 0) << " ms: " << i.plan.ops << " ops\n"
      << "Per step: " << train::collectives_text(i.plan) << "\n"
      << "State per rank: parameters " << train::bytes_text(i.plan.parameter_bytes) << ", optimizer and buffers "
      << train::bytes_text(i.plan.state_bytes) << "\n";
}

std::string json_of(const passes::PassReport& report) {
  std::string text =
      concat("{\"name\": ", json_quoted(report.name), ", \"changed\": ", report.changed ? "true" : "false");
  for (const auto& [name, value] : report.metrics.counts()) text += concat(", ", json_quoted(name), ": ", value);
  for (const auto& [when, step] : {std::pair("before", report.before), std::pair("after", report.after)})
    if (step)
      text += concat(", \"step_seconds_", when, "\": ", shortest(step->seconds), ", \"exposed_seconds_", when,
                     "\": ", shortest(step->exposed), ", \"peak_bytes_", when, "\": ", step->peak_bytes);
  return text + "}";
}

void print_json(std::ostream& out, const Inspection& i) {
  std::vector<std::string> collectives, reports;
  for (const auto& [kind, sum] : i.plan.collectives)
    collectives.push_back(concat(json_quoted(kind), ": {\"count\": ", sum.count, ", \"bytes\": ", sum.bytes, "}"));
  for (const passes::PassReport& report : i.variant.passes) reports.push_back(json_of(report));
  out << "{\"model\": " << json_quoted(i.config.model.name) << ", \"flavor\": " << json_quoted(i.config.model.flavor)
      << ", \"mesh\": " << json_quoted(to_string(i.job.program->strategy().mesh))
      << ", \"target\": " << json_quoted(i.job.program->options().target.name)
      << ", \"parameters\": " << i.job.program->num_parameters()
      << ", \"flops_per_token\": " << shortest(i.job.model.flops_per_token(i.config.training.seq_len))
      << ", \"capture_seconds\": " << shortest(i.variant.capture_ms / 1e3)
      << ", \"complete_seconds\": " << shortest(i.variant.complete_ms / 1e3) << ", \"ops\": " << i.plan.ops
      << ", \"parameter_bytes\": " << i.plan.parameter_bytes << ", \"state_bytes\": " << i.plan.state_bytes
      << ", \"collectives\": {" << join(collectives, ", ") << "}, \"passes\": [" << join(reports, ", ") << "]}\n";
}

// What an archive holds, for who is to write the flags that train it.
int print_archive(std::ostream& out, const std::string& path) {
  const exported::Program program = exported::read_program(path);
  out << exported::describe(program);
  std::set<exported::Slot> constants;
  for (const auto& [slot, place] : program.state_inputs)
    if (program.state[place].kind == exported::StateTensor::Kind::Constant) constants.insert(slot);
  const std::vector<std::string> reasons =
      models::reasons_against(program.graph, constants, &capture::lacks_shape_function);
  if (reasons.empty()) {
    out << "All ops can be trained\n";
    return 0;
  }
  for (const std::string& reason : reasons) out << "Not trained: " << reason << "\n";
  return 1;
}

}  // namespace

int run_inspect(const Request& request, std::ostream& out, std::ostream&) {
  for (const std::string& operand : request.own.operands)
    throw UserError(
        concat("argument ", operand, "\n  expected a flag of sfsdp inspect; --compare A B compares two traces"));
  const train::JobConfig config = config_of(request);
  if (!config.model.path.empty() && config.model.name != "exported") return print_archive(out, config.model.path);
  const bool shows_passes = request.has("passes") || request.has("json");
  const std::string machine = request.get("machine");
  train::JobOptions options{.measured_on = shows_passes ? machine : ""};
  if (!machine.empty())
    options.target = cost::target_of(cost::load_machine(machine, train::attention_of(config.model)));
  train::CompiledJob job = train::make_job(config, request.world, options);
  const Held<const Program::Variant> first = job.program->first();
  const Program::Variant& variant = *first;
  const ir::Graph& graph = variant.graph;
  if (request.has("graph")) {
    out << ir::print(graph);
    return 0;
  }
  if (request.has("layout")) {
    out << plan::print(job.program->storage_layout());
    return 0;
  }
  if (request.has("passes")) {
    out << passes::table(variant.passes) << tune::table(variant.remat.trials);
    return 0;
  }
  if (request.has("allocs")) {
    print_allocations(job, request.world, out);
    return 0;
  }
  const Inspection inspection{config, job, variant, train::summarise(graph)};
  request.has("json") ? print_json(out, inspection) : print_text(out, inspection);
  return 0;
}

}  // namespace sfsdp::tools

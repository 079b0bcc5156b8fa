// SPDX-License-Identifier: BSD-3-Clause
#include <ostream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/tools/inspect.h"
#include "sfsdp/tools/request.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::tools {
int run_inspect(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) {
    out << "usage: sfsdp inspect --config F --world N [--mesh dp_replicate=2,dp_shard=4] [--graph | --passes | "
           "--layout] [--machine M] [--section.key value ...]\n"
           "--passes on a machine: what the step takes behind each\n";
    return 0;
  }
  try {
    const Request request = parse_request(args, {"machine"}, {"graph", "passes", "layout"});
    train::JobConfig config = config_of(request);
    if (request.has("passes") && request.has("machine")) config.debug.predict_passes = true;
    train::CompiledJob job = train::make_job(config, request.world);
    const Program::Variant& variant = job.program->training(job.example);
    const ir::Graph& graph = variant.graph;
    if (request.has("graph")) {
      out << ir::print(graph);
      return 0;
    }
    if (request.has("layout")) {
      const auto& layout = job.program->storage_layout();
      out << (layout ? passes::print(*layout) : "no buckets: each parameter is stored by itself\n");
      return 0;
    }
    if (request.has("passes")) {
      out << passes::table(variant.passes) << passes::table(variant.remat.trials);
      return 0;
    }
    const auto plan = train::summarise(graph, job.program->options().micro_batches);
    out << "Model " << config.model.name << " " << config.model.flavor << ": "
        << with_commas(job.program->num_parameters()) << " parameters, "
        << with_commas(static_cast<int64_t>(job.model.flops_per_token(config.training.seq_len))) << " flops per token\n"
        << "Mesh " << to_string(job.program->strategy().mesh) << "\n"
        << "Captured in " << with_commas(variant.capture_ms, 0) << " ms, sharded and verified in "
        << with_commas(variant.complete_ms, 0) << " ms: " << plan.ops << " ops\n"
        << "Per step: " << train::collectives_text(plan) << "\n"
        << "State per rank: parameters " << train::bytes_text(plan.parameter_bytes) << ", optimizer and buffers "
        << train::bytes_text(plan.state_bytes) << "\n";
    return 0;
  } catch (const std::exception& error) {
    err << "error: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace sfsdp::tools

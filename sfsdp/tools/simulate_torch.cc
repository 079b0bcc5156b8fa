// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/target.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/tools/simulate_plan.h"
#include "sfsdp/tools/sweep.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/job.h"

namespace sfsdp::tools {

int run_simulate(const Request& request, std::ostream& out, std::ostream& err) {
  if (request.has("sweep")) return run_sweep(request, train::capture_job, out, err);
  train::JobConfig config = config_of(request);
  const SimulateSetup setup = simulate_setup(request, config);
  if (!request.has("json"))
    for (const std::string& note : setup.notes) err << note << '\n';
  if (setup.deepspeed) {  // its buckets follow from the parameters, which a step by the usual units names
    const train::CompiledJob usual = train::make_job(config, request.world);
    const Held<const Program::Variant> variant = usual.program->first();
    config.parallelism.fsdp_units = deepspeed_units(variant->plan.graph, *setup.deepspeed);
  }
  const train::CompiledJob job =
      train::make_job(config, request.world, {.fuse = setup.fuse_scope(), .target = cost::target_of(setup.machine)});
  const Held<const Program::Variant> first = job.program->first();
  show_simulation(
      request, setup, first->plan,
      {.model = train::title_of(config.model),
       .mesh = to_string(job.program->strategy().mesh),
       .world = request.world,
       .tokens = static_cast<double>(job.shares.global * config.training.seq_len) / static_cast<double>(request.world),
       .flops_per_token = job.model.flops_per_token(config.training.seq_len)},
      config.parallelism.fsdp_units, out);
  return 0;
}

}  // namespace sfsdp::tools

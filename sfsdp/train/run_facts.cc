// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/run_facts.h"

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train {

std::string start_text(const RunFacts& facts) {
  const JobConfig& config = facts.config;
  std::string text = config.job.print_config ? to_toml(config) : "";
  for (const std::string& note : facts.notes) text += note + "\n";
  const std::string& flavor = config.model.name == "hf" ? config.model.hf_assets_path : config.model.flavor;
  return concat(text, "Model ", config.model.name, " ", flavor, " size: ", with_commas(facts.parameters),
                " total parameters\n", "Mesh ", facts.mesh, ", ", facts.backend, "\n", "Plan: ", facts.plan.ops,
                " ops, per step ", collectives_text(facts.plan), "\n", "State per rank: parameters ",
                bytes_text(facts.plan.parameter_bytes), ", optimizer and buffers ", bytes_text(facts.plan.state_bytes),
                "; planned peak ", bytes_text(facts.planned_peak_bytes), "\n",
                "Peak for mfu: ", with_commas(facts.peak_flops / 1e9, 0), " GFLOP/s of this rank, a ",
                config.training.mixed_precision_param, " matrix product measured now\n", facts.datasets,
                "Trainer is initialized with local batch size ", config.training.local_batch_size,
                ", global batch size ", facts.global_batch, ", gradient accumulation steps ", facts.micro_batches,
                ", sequence length ", config.training.seq_len, ", total steps ", config.training.steps, " (warmup ",
                config.lr_scheduler.warmup_steps, ")\n", "Training starts at step ", facts.last_step + 1, "\n");
}

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/run_facts.h"

#include <unistd.h>

#include <array>
#include <ctime>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/base/version.h"
#include "sfsdp/passes/canonical/decompose.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/report/memory_timeline.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/metrics.h"

namespace sfsdp::train {

namespace {

PlannedMemory split_memory(const ir::Graph& executed, const plan::MemoryPlan& plan) {
  const PlanSummary summary = summarise(executed);
  PlannedMemory memory;
  memory.parameters = summary.parameter_bytes;
  memory.optimizer = plan.state_bytes - summary.parameter_bytes;  // what rounding adds is the optimizer's
  const std::vector<sim::MemoryKind> kinds = sim::memory_kinds(executed, plan);
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const plan::Buffer& buffer = plan.buffers[i];
    if (buffer.first > plan.peak_position || buffer.last < plan.peak_position) continue;
    switch (kinds[i]) {
      case sim::MemoryKind::Parameters: memory.gathered += buffer.bytes; break;
      case sim::MemoryKind::Activations: memory.activations += buffer.bytes; break;
      case sim::MemoryKind::Gradients: memory.gradients += buffer.bytes; break;
      case sim::MemoryKind::Workspace: memory.other += buffer.bytes; break;
    }
  }
  return memory;
}

}  // namespace

PlannedMemory planned_memory(const ir::Graph& graph) {
  const ir::Graph executed = passes::decomposed(graph);
  return split_memory(executed, plan::plan_memory(executed, {.blocking = true}));
}

PlannedMemory planned_memory(const plan::StepPlan& plan) {
  PlannedMemory memory = split_memory(plan.graph, plan.memory);
  memory.other += plan.memory.peak() - memory.total();  // constants, workspaces, room between buffers
  return memory;
}

std::string start_text(const RunFacts& facts) {
  const JobConfig& config = facts.config;
  std::string text = config.job.print_config ? to_toml(config) : "";
  for (const std::string& note : facts.notes) text += note + "\n";
  return concat(text, "Model ", title_of(config.model), " size: ", with_commas(facts.parameters), " total parameters\n",
                "Mesh ", facts.mesh, ", ", facts.backend, "\n", "Plan: ", facts.plan.ops, " ops, per step ",
                collectives_text(facts.plan), "\n", "State per rank: parameters ",
                bytes_text(facts.plan.parameter_bytes), ", optimizer and buffers ", bytes_text(facts.plan.state_bytes),
                "; planned peak ", bytes_text(facts.memory.total()), "\n",
                "Peak for mfu: ", with_commas(facts.peak_flops / 1e9, 0), " GFLOP/s of this rank, a ",
                compute_dtype(config.training), " matrix product measured now\n", facts.datasets,
                "Trainer is initialized with local batch size ", config.training.local_batch_size,
                ", global batch size ", facts.global_batch, ", gradient accumulation steps ", facts.micro_batches,
                ", sequence length ", config.training.seq_len, ", total steps ", config.training.steps, " (warmup ",
                config.lr_scheduler.warmup_steps, ")\n", "Training starts at step ", facts.last_step + 1, "\n");
}

namespace {

std::string utc_text(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm utc = {};
  ::gmtime_r(&time, &utc);
  std::array<char, 32> text = {};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

std::string host_name() {
  std::array<char, 256> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

std::string json_line(const RunFacts& facts) {
  std::string text = "{";
  const auto add = [&](const char* name, const std::string& value) {
    text += concat(text.size() == 1 ? "\"" : ", \"", name, "\": ", value);
  };
  const auto add_int = [&](const char* name, int64_t value) { add(name, std::to_string(value)); };
  add("started", json_quoted(utc_text(facts.start_seconds)));
  add_int("first_step", facts.last_step + 1);
  add_int("last_step", facts.config.training.steps);
  add("version", json_quoted(version()));
  add("libtorch", json_quoted(facts.libtorch));
  add("host", json_quoted(host_name()));
  add_int("pid", ::getpid());
  add_int("world_size", facts.world_size);
  add("mesh", json_quoted(facts.mesh));
  add("backend", json_quoted(facts.backend));
  add_int("parameters", facts.parameters);
  add_int("tokens_per_step", facts.tokens_per_step());
  add_int("data_ranks", facts.data_ranks);
  add_int("flops_per_token", facts.flops_per_token);
  add("peak_flops", json_number(facts.peak_flops));
  add_int("device_bytes", facts.device_bytes);
  const PlannedMemory& memory = facts.memory;
  add("planned_memory_bytes", concat("{\"parameters\": ", memory.parameters, ", \"optimizer\": ", memory.optimizer,
                                     ", \"gradients\": ", memory.gradients, ", \"activations\": ", memory.activations,
                                     ", \"gathered\": ", memory.gathered, ", \"other\": ", memory.other, "}"));
  add("collectives", json_quoted(collectives_text(facts.plan)));
  add("datasets", json_quoted(facts.datasets));
  add("config", json_quoted(to_toml(facts.config)));
  return text + "}";
}

}  // namespace sfsdp::train

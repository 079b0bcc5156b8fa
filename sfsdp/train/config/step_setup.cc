// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/config/step_setup.h"

#include <utility>

#include "sfsdp/base/strings.h"

namespace sfsdp::train {
namespace {

// The mesh and mode that the config asks of `world_size` ranks.
Strategy strategy_of(const JobConfig& config, int64_t world_size) {
  const auto& p = config.parallelism;
  DeviceMesh mesh = make_mesh(p, world_size);
  DataParallelOptions options;
  options.zero_stage = p.zero_stage;
  options.reshard_after_forward = p.fsdp_reshard_after_forward != "never";
  options.min_shard_numel = p.min_shard_numel;
  options.layout = p.fsdp_layout == "flat" ? ParameterLayout::Flat : ParameterLayout::Dim0;
  options.units = p.fsdp_units;
  options.reduce_once = p.fsdp_reduce_gradients == "last";
  options.mixed_precision = mixed_precision_of(config.training);
  options.mixed_precision.grad_dtype = grad_dtype(config);
  options.mixed_precision.state_dtype = state_dtype(config);
  return data_parallel(std::move(mesh), options, tensor_parallel_of(config), context_parallel_of(config),
                       expert_parallel_of(config));
}

}  // namespace

MixedPrecisionPolicy mixed_precision_of(const Training& training) {
  if (training.mixed_precision_param != "bfloat16") return {};
  return {ir::DType::bf16, training.mixed_precision_reduce == "bfloat16" ? ir::DType::bf16 : ir::DType::f32};
}

StepSetup step_setup(const JobConfig& config, int64_t world_size) {
  StepSetup setup = {strategy_of(config, world_size), {}, {}};
  setup.shares = share_batch(config.training, setup.strategy.data_ranks() * setup.strategy.axis_size("ep"));
  if (setup.shares.accumulation == 1) setup.strategy.options.reduce_once = false;  // the only one is the last
  step::StepOptions& options = setup.options;
  options.optimizer = optimizer_of(config.optimizer);
  options.max_norm = config.training.max_norm;
  options.micro_batches = setup.shares.accumulation;
  options.tune = tune_of(config);
  passes::PipelineOptions& pipeline = options.pipeline;
  pipeline.reshard.keep_last = config.parallelism.fsdp_reshard_after_forward == "default";
  pipeline.prefetch.depth = config.parallelism.fsdp_prefetch_depth;
  pipeline.prefetch.max_bytes = static_cast<int64_t>(config.parallelism.fsdp_prefetch_gib * (1 << 30));
  passes::set_order(pipeline, config.parallelism.fsdp_order);
  pipeline.loss_chunks = config.training.loss_chunks;
  pipeline.canonical.document_tokens = config.training.document_tokens;
  pipeline.remat = remat_of(config.activation_checkpoint);
  pipeline.disable = config.debug.disable_pass;
  return setup;
}

void follow_checkpoints(StepSetup& setup, const JobConfig& config, const std::vector<std::string>& blocks) {
  if (config.activation_checkpoint.mode != "as_exported" || blocks.empty()) return;
  setup.options.pipeline.remat = {.mode = passes::RematMode::Full, .blocks = join(blocks, ",")};
}

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <dlfcn.h>

#include <filesystem>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/models/loss.h"
#include "sfsdp/train/job.h"

namespace sfsdp::train {

Strategy strategy_of(const JobConfig& config, int64_t world_size) {
  const auto& p = config.parallelism;
  const int64_t replicate = p.data_parallel_replicate_degree;
  const int64_t shard = p.data_parallel_shard_degree > 0 ? p.data_parallel_shard_degree : world_size / replicate;
  if (replicate * shard != world_size)
    throw UserError(concat("parallelism.data_parallel_replicate_degree = ", replicate,
                           ", data_parallel_shard_degree = ", p.data_parallel_shard_degree,
                           "\n  expected a product of ", world_size,
                           ", the number of ranks; set data_parallel_shard_degree = -1 to fill"));
  DataParallelOptions options;
  options.mode = replicate == 1 ? DataParallelMode::FullyShard
                 : shard == 1   ? DataParallelMode::Replicate
                                : DataParallelMode::HybridShard;
  options.reshard_after_forward = p.fsdp_reshard_after_forward != "never";
  options.min_shard_numel = p.min_shard_numel;
  if (config.training.mixed_precision_param == "bfloat16") {
    options.mixed_precision.param_dtype = ir::DType::bf16;
    options.mixed_precision.reduce_dtype =
        config.training.mixed_precision_reduce == "bfloat16" ? ir::DType::bf16 : ir::DType::f32;
  }
  return data_parallel(init_device_mesh({{"dp_replicate", replicate}, {"dp_shard", shard}}), options);
}

int64_t micro_batches_of(const JobConfig& config, int64_t data_ranks) {
  const int64_t at_once = config.training.local_batch_size * data_ranks;
  if (config.training.global_batch_size < 0) return 1;
  if (config.training.global_batch_size % at_once != 0)
    throw UserError(concat("training.global_batch_size = ", config.training.global_batch_size,
                           "\n  expected a multiple of local_batch_size × data-parallel ranks = ", at_once));
  return config.training.global_batch_size / at_once;
}

CompiledJob make_job(const JobConfig& config, int64_t world_size) {
  CompiledJob job;
  models::ModelSpec spec{config.model.name, config.model.flavor, {}};
  for (const auto& [name, value] : config.model_args) spec.args[name] = value;
  capture::run_meta_init([&] {
    job.model = models::make_language_model(spec);
    return job.model.module;
  });
  const auto shape = std::vector<int64_t>{config.training.local_batch_size, config.training.seq_len};
  // Only shapes and dtypes of the example are read.
  const auto meta = at::TensorOptions(at::kLong).device(at::kMeta);
  job.example = {at::empty(shape, meta), at::empty(shape, meta)};

  sfsdp::Optimizer optimizer;
  const auto& o = config.optimizer;
  if (o.name == "SGD")
    optimizer = SGD{o.lr, o.momentum, o.weight_decay};
  else
    optimizer = AdamW{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay};
  Strategy strategy = strategy_of(config, world_size);
  CompileOptions options;
  options.max_norm = config.training.max_norm;
  options.micro_batches = micro_batches_of(config, strategy.data_ranks());
  options.seed = static_cast<uint64_t>(config.debug.seed.value_or(0));
  auto forward = job.model.forward;
  capture::LossFunction loss = [forward](const Batch& batch) -> LossValue {
    return {models::cross_entropy(forward(batch[0]), batch[1]), at::Tensor()};
  };
  job.program = std::make_shared<Program>(job.model.module, std::move(loss), optimizer, job.example,
                                          std::move(strategy), options);
  return job;
}

std::string libtorch_include_dir() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&at::show_config), &info) || !info.dli_fname) return "";
  std::error_code ignored;
  const auto lib = std::filesystem::canonical(info.dli_fname, ignored).parent_path();
  const auto include = lib.parent_path() / "include";
  return std::filesystem::is_directory(include, ignored) ? include.string() : "";
}

TokenDataset open_job_dataset(const JobConfig& config, int64_t vocab_size) {
  const auto& t = config.training;
  DatasetOptions options;
  options.name = t.dataset;
  options.seq_len = t.seq_len;
  options.vocab_size = vocab_size;
  options.token_dtype = parse_token_dtype(t.token_dtype);
  options.max_bytes = t.dataset_max_bytes;
  options.seed = static_cast<uint64_t>(config.debug.seed.value_or(0));
  if (t.dataset_path) options.path = *t.dataset_path;
  if (options.path.empty() && t.dataset == "libtorch_headers") options.path = libtorch_include_dir();
  TokenDataset dataset = open_dataset(options);
  if (dataset.vocab_size() > vocab_size)
    throw UserError(concat("training.dataset = ", t.dataset, " has ids up to ", dataset.vocab_size() - 1,
                           ", the model a vocabulary of ", vocab_size, "\n  expected a vocabulary of at least ",
                           dataset.vocab_size(), "; set --model.args.vocab_size ", dataset.vocab_size()));
  return dataset;
}

}  // namespace sfsdp::train

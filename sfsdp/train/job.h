// SPDX-License-Identifier: BSD-3-Clause
// From a config to a compiled program: what `train` and `inspect` share.
#pragma once

#include <memory>
#include <string>

#include "sfsdp/models/registry.h"
#include "sfsdp/step/step.h"
#include "sfsdp/train/config.h"
#include "sfsdp/train/dataset.h"

namespace sfsdp::train {

// The mesh and mode that the config asks of `world_size` ranks. Throws UserError where the degrees do not fit.
Strategy strategy_of(const JobConfig& config, int64_t world_size);
// Micro-batches per step and rank: global_batch_size / (local_batch_size × data ranks).
int64_t micro_batches_of(const JobConfig& config, int64_t data_ranks);

struct CompiledJob {
  models::LanguageModel model;
  std::shared_ptr<Program> program;
  Batch example;  // shapes only: one micro-batch of one rank
};

CompiledJob make_job(const JobConfig& config, int64_t world_size);

// The dataset; without a path `libtorch_headers` reads the headers of the LibTorch that is loaded.
TokenDataset open_job_dataset(const JobConfig& config, int64_t vocab_size);
// LibTorch's include folder, beside the library that this process runs; "" if it is not there.
std::string libtorch_include_dir();

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
// From a config to a compiled program: what `train` and `inspect` share.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/device/cpu/choose_device.h"
#include "sfsdp/exported/program.h"
#include "sfsdp/models/registry.h"
#include "sfsdp/step/step.h"
#include "sfsdp/train/captured_job.h"
#include "sfsdp/train/checkpoint/checkpointer.h"
#include "sfsdp/train/config/config.h"
#include "sfsdp/train/config/config_resolve.h"
#include "sfsdp/train/data/loader.h"
#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/peft_import.h"

namespace sfsdp::train {

struct CompiledJob {
  models::LanguageModel model;
  capture::LossFunction loss;
  std::vector<std::string> batch;  // which tensor of a sample each tensor of `loss`'s batch is
  bool shifts_labels = false;      // the loss takes no first label of a row for a target
  std::vector<size_t> uncast;      // of them, what mixed precision does not cast: what the loss alone reads
  std::string model_name;          // of its family: "llama3"
  std::shared_ptr<Program> program;
  Batch example;  // shapes only: one micro-batch of one rank
  BatchShares shares;
  std::string hf_folder;                             // weights to start from; "": as initialised
  std::optional<HfConfig> hf_config;                 // of that folder
  std::shared_ptr<const exported::Program> archive;  // of model.name = exported, whose weights it starts from
  std::shared_ptr<const PeftAdapter> adapter;        // of lora.adapter
  std::optional<double> lora_alpha;                  // of its adapters, if it has any
  std::vector<std::string> checkpointed_blocks;      // of the archive: activation_checkpoint.mode = as_exported
  std::vector<std::string> notices;                  // of config.json, for the log
};

struct JobOptions {
  int64_t rank = 0;              // 0 alone prints graphs (debug.print_ir_after_all, debug.print_ir_diff)
  std::string measured_on = {};  // a machine file: reports of passes say what the step takes there; "": they do not
  passes::FuseScope fuse = passes::FuseScope::All;
  cost::Target target = cost::cpu_target();  // that the plan is made for
  device::Cores cores = {};                  // by which exec.lanes = auto decides
  // CompileOptions::choose_products, for exec.products = measured; unset: then the plan names no library for products. Told the
  // kernel that exec.products = by_processor would name.
  std::function<passes::ProductTable(const std::vector<ir::ProductShape>&, const std::string& rule)> choose_products =
      {};
};
// Where exec.products = measured leaves products without a name, as nothing is measured; else "".
std::string note_of_products(const JobConfig& config, const JobOptions& options);

CompiledJob make_job(const JobConfig& config, int64_t world_size, const JobOptions& options = {});

// The capture alone.  throws: UserError for a model that does not exist or cannot be captured
CapturedJob capture_job(const JobConfig& config);

// Copies this rank's part of the weights from job.hf_folder or job.archive into the step. Returns lines for the log.
std::vector<std::string> load_initial_weights(const CompiledJob& job, Step& step);

// Copies this rank's part of the weights that a checkpoint leaves out into the step, from what a run has begun with: an archive,
// a Hugging Face folder, or initial values, which a new step has. Where the job itself names such a source, it is that one.
void load_weights_of(const checkpoint::WeightSource& source, const CompiledJob& job, Step& step);

// The rows as job.loss takes them.
//   layout: of the source that they are from
Batch to_batch(const CompiledJob& job, const MicroBatch& rows, const std::vector<SampleTensor>& layout);
// All parameters, buffers and optimizer tensors of this rank, in the program's order. They alias the step's storage until
// its next step. Once they have been written, call step.load_state_dict({}): copies of them are then made anew.
//   rank: this rank's in the world
std::vector<checkpoint::Piece> checkpoint_pieces(Step& step, int64_t rank);
// What [checkpoint] asks for, and what is written down with each save.
checkpoint::CheckpointOptions checkpoint_options(const JobConfig& config, const CompiledJob& job);
// The config.json of its folder.  throws: UserError for a model that no class of transformers computes
HfConfig export_config(const JobConfig& config, const CompiledJob& job);
// Where checkpoint.last_save_in_hf puts its folder; "" if it is not asked for.
std::string last_hf_folder(const JobConfig& config, int64_t step);
// Writes it, for a step that is the last one. A collective call. Returns a line for the log.
std::string export_last(const JobConfig& config, const CompiledJob& job, const Step& step, comm::CommWorld* world);
// LibTorch's include folder, beside the library that this process runs; "" if it is not there.
std::string libtorch_include_dir();

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
// From a job's numbers and the number of processes to the mesh and the shares of a batch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/optim/optimizer.h"
#include "sfsdp/parallel/context_parallel.h"
#include "sfsdp/parallel/tensor_parallel.h"
#include "sfsdp/passes/memory/remat.h"
#include "sfsdp/train/config/config.h"
#include "sfsdp/train/lr_schedule.h"
#include "sfsdp/tune/tune.h"

namespace sfsdp::train {

// Axes outer to inner: dp_replicate (left out when 1), dp_shard (always there; less what ep takes of it), ep, cp and tp (left out when
// 1); view "dp" over the first two.
//   throws: UserError if the degrees do not multiply to world_size, or the experts' is no divisor of the shards'
DeviceMesh make_mesh(const Parallelism& parallelism, int64_t world_size);

// dp_replicate=2,dp_shard=4,tp=2: the degrees of [parallelism] as flags, and the ranks that they multiply to.
struct MeshFlags {
  std::vector<std::string> flags;
  int64_t world = 1;
};
//   throws: UserError for an axis that does not exist or stands twice, and a size below 1
MeshFlags mesh_flags(const std::string& text);

// How one step's sequences are shared out: global = local * ranks * accumulation.
struct BatchShares {
  int64_t local = 0;         // sequences of a rank's micro-batch
  int64_t global = 0;        // sequences of a step
  int64_t accumulation = 1;  // micro-batches per rank and step
  bool operator==(const BatchShares&) const = default;
};

// Sequences that a rank is given at once, of local_batch_size: those of all ranks of ep, of which it takes its own.
int64_t given_rows(const Parallelism& parallelism, int64_t local_batch_size);

//   throws: UserError if training.global_batch_size is no multiple of local_batch_size * data_parallel_ranks
BatchShares share_batch(const Training& training, int64_t data_parallel_ranks);

// How parallelism.context_parallel_degree cuts the sequence.
ContextParallelOptions context_parallel_of(const JobConfig& config);

// How parallelism.expert_parallel_degree brings tokens to experts.
ExpertParallelOptions expert_parallel_of(const JobConfig& config);

// What parallelism.tensor_parallel_degree cuts; nothing for 1.
//   throws: UserError for an entry that is not pattern=dimension, and for a model without a plan
TensorParallel tensor_parallel_of(const JobConfig& config);

//   throws: UserError for an entry of lr_factors that is not pattern=factor
sfsdp::Optimizer optimizer_of(const Optimizer& config);

// The schedule goes over lr_scheduler.total_steps, so that a run may stop before its end; unset: over training.steps.
LrScheduleOptions schedule_of(const JobConfig& config);

// What is chosen by cost.
// The kernel that model.attention names; none for the machine file's.
std::optional<cost::Attention> attention_of(const Model& model);

tune::TuneOptions tune_of(const JobConfig& config);
// training.grad_dtype and optimizer.state_dtype; unset: training.dtype.
std::optional<ir::DType> grad_dtype(const JobConfig& config);
std::optional<ir::DType> state_dtype(const JobConfig& config);
// Throws UserError for what only plan and simulate take: gradients and moments of another dtype than the parameters.
void check_trained(const JobConfig& config);
// Whether the loss leaves out targets of a sample, and so has a count: what masks say, and first ids of documents that are apart.
inline bool counts_targets(const Training& training) { return training.loss_mask || training.document_mask; }
// The model as reports call it: "llama3 8B", "hf FOLDER", "exported model.pt2".
std::string title_of(const Model& model);
// What matrix products of forward and backward compute in: "float32" or "bfloat16".
const std::string& compute_dtype(const Training& training);
// What backward computes again.
//   throws: UserError for a selective_ac_option that is neither a number nor op
passes::RematOptions remat_of(const ActivationCheckpoint& config);

// A message of the C++ API as who wrote a config or flags reads it: "DataParallelOptions::units = ..." becomes
// "parallelism.fsdp_units = ...".
std::string with_keys(std::string message);

// The folder of Hugging Face weights to start from; "" for weights the model draws itself.
//   throws: UserError if a folder is named of which we cannot read the format
std::string initial_hf_folder(const JobConfig& config);

}  // namespace sfsdp::train

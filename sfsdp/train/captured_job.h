// SPDX-License-Identifier: BSD-3-Clause
// One capture for many configurations: meshes, optimizers, remat and passes change what is made of it, not itself.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/train/config/config.h"

namespace sfsdp::train {

struct CapturedJob {
  ir::Graph graph;                // of a training step, whole parameters: step::complete_step makes it a rank's
  bool half_precision = false;    // gradients are made in bf16
  std::string draws_wrong;        // why its random draws hold on one rank with one micro-batch alone; "": on any
  double flops_per_token = 0;     // forward and backward
  double load_balance_coeff = 0;  // as models::LanguageModel has it
  std::vector<std::string> checkpointed_blocks;  // of an archive: activation_checkpoint.mode = as_exported
};

// Configs of the same key have the same capture.
std::string capture_key(const JobConfig& config);

}  // namespace sfsdp::train

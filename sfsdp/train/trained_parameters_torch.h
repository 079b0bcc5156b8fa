// SPDX-License-Identifier: BSD-3-Clause
// What of a model a job trains: [model] frozen and [lora].
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "sfsdp/train/config/config.h"
#include "sfsdp/train/job.h"

namespace sfsdp::train {

// Adds adapters and freezes what is not trained. Where the module is built.
//   job:    with what names modules in Python: hf_config, archive, model.args; gets lora_alpha, adapter and its notices
//   throws: UserError naming model.frozen or lora.target and what was probably meant; as PeftAdapter
void choose_trained(torch::nn::Module& module, const JobConfig& config, CompiledJob& job);

// Copies this rank's part of the adapters into the step. Returns a line for the log. Not a collective call.
//   throws: UserError as PeftAdapter
std::string load_adapter(const PeftAdapter& adapter, Step& step);

// Elements of matrices: a token costs 6 flops for each that is trained, 4 for one that is frozen, as its gradient is not
// computed.
struct MatrixElements {
  double trained = 0, adapters = 0, frozen = 0;  // adapters are trained too, and counted in `trained`
};
MatrixElements matrix_elements(const torch::nn::Module& module);

}  // namespace sfsdp::train

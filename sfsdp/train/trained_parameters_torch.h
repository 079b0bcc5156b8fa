// SPDX-License-Identifier: BSD-3-Clause
// What of a model a job trains: [model] frozen and [lora].
#pragma once

#include <torch/nn/module.h>

#include "sfsdp/train/config/config.h"

namespace sfsdp::train {

// Adds adapters and freezes what is not trained. Where the module is built.
//   throws: UserError naming model.frozen or lora.target and what was probably meant
void choose_trained(torch::nn::Module& module, const JobConfig& config);

// Elements of matrices: a token costs 6 flops for each that is trained, 4 for one that is frozen, as its gradient is not
// computed.
struct MatrixElements {
  double trained = 0, adapters = 0, frozen = 0;  // adapters are trained too, and counted in `trained`
};
MatrixElements matrix_elements(const torch::nn::Module& module);

}  // namespace sfsdp::train

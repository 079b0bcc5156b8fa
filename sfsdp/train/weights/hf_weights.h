// SPDX-License-Identifier: BSD-3-Clause
// Starts a step from the weights of a Hugging Face checkpoint.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/step/step.h"
#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/safetensors.h"

namespace sfsdp::train {

// Copies this rank's part of every parameter into the step, converted to the parameter's dtype; no other bytes of the
// files are read. Not a collective call. Optimizer state stays as it is.
//   returns: names of tensors of the checkpoint that the model does not have, sorted, without the constants that old
//            transformers saved (rotary_emb.inv_freq, attn.bias, attn.masked_bias)
//   throws: UserError naming folder, tensor, expected and got: one is missing, has another shape, or a dtype we lack
std::vector<std::string> load_hf_weights(Step& step, const SafetensorsCheckpoint& checkpoint, const HfConfig& config);

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
// What a checkpoint holds beyond the parameters of the model that was read from it.
#pragma once

#include <set>
#include <string>

#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/safetensors.h"

namespace sfsdp::train {

// A model that is read in part trains, only worse. So each tensor must be one of `read`, or one of these:
//   - constants that old transformers saved, which it ignores itself: rotary_emb.inv_freq of Llama's family; attn.bias
//     and attn.masked_bias of GPT-2
//   - lm_head.weight of a tied output, if it is the embedding's copy: same dtype, shape and bytes
//   throws: UserError naming the others, at most eight of them, and what of config.json decides
void expect_all_read(const SafetensorsCheckpoint& checkpoint, const std::set<std::string>& read,
                     const HfConfig& config);

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
// Writes config.json of a Hugging Face folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/ir/type.h"
#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/hf_layout.h"

namespace sfsdp::train {

// The config of a model that was not read from a folder: architecture from its flags, widths that its arguments leave to
// a rule (hidden_dim or head_dim = 0) from its parameters' shapes.
//   model, args: as models::LanguageModel has them
//   from:        the config that the model came from, whose architecture and window it has unless its arguments say
//                otherwise; null: none
//   throws:      UserError for a model that no architecture describes: qkv_bias together with qk_norm, biases of experts with softmax scores
HfConfig hf_config_of_model(const std::string& model, const std::map<std::string, HfConfig::Value>& args,
                            const std::vector<HfSource>& parameters, const HfConfig* from = nullptr);

// A document that transformers 4 and 5 read, and hf_config.h reads back to the same config.
//   dtype:          of the weights beside it
//   max_positions:  max_position_embeddings where `base` has none, of a model with rotary embeddings
//   base:           text of a config.json whose other keys (bos_token_id, …) are kept, if it is of the same architecture
std::string hf_config_json(const HfConfig& config, ir::DType dtype, int64_t max_positions, const std::string& base);

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
// Parts of config.json that are read into arguments in files of their own: DeepSeek-V3 and V2, mixtures of Llama's family, float8.
#pragma once

#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/hf_config_section.h"

namespace sfsdp::train {

// All arguments of "deepseek_v3", as V3 and as V2 have them.
void read_deepseek_v3(const Section& top, HfConfig& config);
void read_deepseek_v2(const Section& top, HfConfig& config);

// Which of transformers' classes the experts are of, or that there are none.
enum class Experts : uint8_t { None, Qwen3, Mixtral };

// Arguments of the mixture of a model of Llama's family; num_experts = 0 without one. The others must have been read.
void read_llama_mixture(const Section& top, Experts experts, HfConfig& config);

// float8 in blocks of a matrix, as DeepSeek-V3 has them, into weight_block. Which weights are, each tensor's dtype says.
void read_quantization(const Section& top, HfConfig& config);

}  // namespace sfsdp::train

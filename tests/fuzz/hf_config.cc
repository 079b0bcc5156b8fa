// SPDX-License-Identifier: BSD-3-Clause
// Hugging Face's config.json.
#include "sfsdp/train/weights/hf_config.h"

#include "target.h"

namespace sfsdp::fuzz {
namespace {

void read(std::string_view bytes) { train::parse_hf_config(bytes, "config.json"); }

std::vector<std::string> seeds() {
  return {
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64,
 "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
 "vocab_size": 64, "rms_norm_eps": 1e-05, "rope_theta": 100.0, "tie_word_embeddings": false, "torch_dtype": "float32",
 "attention_bias": false, "mlp_bias": false, "max_position_embeddings": 64, "rope_scaling": {"rope_type": "llama3",
 "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}})",
      R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 32,
 "n_head": 4, "n_layer": 2, "n_positions": 24, "vocab_size": 64, "layer_norm_epsilon": 1e-05, "torch_dtype": "float32"})"};
}

SFSDP_FUZZ_TARGET(hf_config, read, seeds)

}  // namespace
}  // namespace sfsdp::fuzz

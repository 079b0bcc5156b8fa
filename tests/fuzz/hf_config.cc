// SPDX-License-Identifier: BSD-3-Clause
// Hugging Face's config.json. What is taken must come back the same from the config of an export that is made over it.
#include "sfsdp/train/weights/hf_config.h"

#include "sfsdp/base/check.h"
#include "sfsdp/train/weights/hf_config_json.h"
#include "target.h"

namespace sfsdp::fuzz {
namespace {

void read(std::string_view bytes) {
  const train::HfConfig config = train::parse_hf_config(bytes, "config.json");
  const std::string written = train::hf_config_json(config, ir::DType::f32, 64, std::string(bytes));
  const train::HfConfig again = train::parse_hf_config(written, "written");
  SFSDP_CHECK(again.args == config.args && again.architecture == config.architecture &&
                  again.sliding_window == config.sliding_window,
              written);
}

std::vector<std::string> seeds() {
  return {
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64,
 "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
 "vocab_size": 64, "rms_norm_eps": 1e-05, "rope_theta": 100.0, "tie_word_embeddings": false, "torch_dtype": "float32",
 "attention_bias": false, "mlp_bias": false, "max_position_embeddings": 64, "rope_scaling": {"rope_type": "llama3",
 "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}})",
      R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 48,
 "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
 "rms_norm_eps": 1e-06, "rope_theta": 10000, "tie_word_embeddings": true, "use_sliding_window": true,
 "sliding_window": 8, "max_window_layers": 1, "layer_types": ["full_attention", "sliding_attention"]})",
      R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu", "hidden_size": 48,
 "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": null, "vocab_size": 64,
 "rms_norm_eps": 1e-05, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "sliding_window": 16})",
      R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 32,
 "n_head": 4, "n_layer": 2, "n_positions": 24, "vocab_size": 64, "layer_norm_epsilon": 1e-05, "torch_dtype": "float32"})",
      R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", "hidden_size": 48,
 "intermediate_size": 80, "moe_intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4,
 "num_key_value_heads": 2, "vocab_size": 64, "rms_norm_eps": 1e-06, "rope_theta": 10000, "num_experts": 8,
 "num_experts_per_tok": 3, "norm_topk_prob": true, "decoder_sparse_step": 2, "mlp_only_layers": [0],
 "use_sliding_window": true, "sliding_window": 8, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
 "activation_scheme": "dynamic", "weight_block_size": [128, 64]}})",
      R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu", "hidden_size": 48,
 "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
 "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": null,
 "router_jitter_noise": 0.0})"};
}

SFSDP_FUZZ_TARGET(hf_config, read, seeds)

}  // namespace
}  // namespace sfsdp::fuzz

// SPDX-License-Identifier: BSD-3-Clause
// Reads config.json of a Hugging Face checkpoint, as transformers 4 and 5 write it, into the arguments of our models.
// What our models do not compute is refused: a config read wrongly trains, only worse.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sfsdp {
struct JsonValue;
}

namespace sfsdp::train {

// Names of `architectures` in config.json.
inline constexpr std::string_view kDeepSeekV3 = "DeepseekV3ForCausalLM", kDeepSeekV2 = "DeepseekV2ForCausalLM";

// args are what models::ModelSpec::args of `model` takes. For "llama3" (Llama, Mistral, Mixtral, Qwen2, Qwen3 and Qwen3-MoE):
//   int64_t dim n_layers n_heads n_kv_heads vocab_size hidden_dim head_dim; double norm_eps rope_theta;
//   bool tied, qkv_bias, qk_norm, rope_scaling, and if that is true double rope_scaling_factor rope_low_freq_factor
//   rope_high_freq_factor, int64_t rope_original_max_position;
//   int64_t num_experts, and above 0 int64_t top_k moe_inter_dim n_dense_layers moe_layer_step, bool route_norm
// For "deepseek_v3" (DeepseekV3ForCausalLM and DeepseekV2ForCausalLM): all of models::DeepSeekV3Args, those of YaRN if yarn is true.
// For "gpt" (GPT2LMHeadModel):
//   int64_t dim n_layers n_heads vocab_size max_positions; double norm_eps; bool tied, bias (always), rope (never)
// What of a matrix has one scale, where weights are stored in float8.
struct WeightBlock {
  int64_t rows = 0, columns = 0;
};

struct HfConfig {
  using Value = std::variant<bool, int64_t, double, std::string>;
  std::string architecture;  // "Qwen3ForCausalLM"
  std::string model;
  std::map<std::string, Value> args;
  // Tokens that attention sees, of a layer that does not see all. Our models see all, which is the same up to this length.
  std::optional<int64_t> sliding_window;
  std::optional<WeightBlock> weight_block;  // as quantization_config has it; none: no weight is quantised
  std::string dtype;                        // of the saved weights: "bfloat16"; "" if the file does not say
  std::vector<std::string> notices;         // what the file asks for and is not done, a line each

  // The key must be there, of this type.
  int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;
  bool flag(const std::string& key) const;
  bool has_mixtures() const;  // a "llama3" with experts
  // Whether that layer, counted from 0, of a "llama3" has experts in place of a feed-forward.
  bool has_mixture(int64_t layer) const;
};

// Reads DIR/config.json.
//   throws: UserError naming file, key, expected and got: a key is missing, or holds what our models do not compute
HfConfig read_hf_config(const std::string& dir);
// The same from text; `file` is for messages.
HfConfig parse_hf_config(std::string_view text, const std::string& file);
HfConfig hf_config_of(const JsonValue& document, const std::string& file);

// DIR/config.json as it is; "" if there is none. throws: UserError for a file that cannot be read
std::string read_hf_config_text(const std::string& dir);

// Throws UserError for sequences longer than the model's sliding window. `folder` is for the message.
void check_sliding_window(const HfConfig& config, int64_t seq_len, const std::string& folder);

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_names.h"

#include <array>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train {

namespace {

enum class Heads : uint8_t { None, Query, KeyValue, One };

struct LlamaRow {
  std::string_view ours;
  std::string_view hf;
  Heads heads = Heads::None;
  const char* if_set = nullptr;  // the flag of the config that gives the model this parameter
};

// Rests of names: after "layers.{i}." here and "model.layers.{i}." there.
constexpr std::array<LlamaRow, 14> kLlamaLayer = {{
    {"attention.wq.weight", "self_attn.q_proj.weight", Heads::Query},
    {"attention.wk.weight", "self_attn.k_proj.weight", Heads::KeyValue},
    {"attention.wv.weight", "self_attn.v_proj.weight"},
    {"attention.wo.weight", "self_attn.o_proj.weight"},
    {"attention.wq.bias", "self_attn.q_proj.bias", Heads::Query, "qkv_bias"},
    {"attention.wk.bias", "self_attn.k_proj.bias", Heads::KeyValue, "qkv_bias"},
    {"attention.wv.bias", "self_attn.v_proj.bias", Heads::None, "qkv_bias"},
    {"attention.q_norm.weight", "self_attn.q_norm.weight", Heads::One, "qk_norm"},
    {"attention.k_norm.weight", "self_attn.k_norm.weight", Heads::One, "qk_norm"},
    {"feed_forward.w1.weight", "mlp.gate_proj.weight"},
    {"feed_forward.w2.weight", "mlp.down_proj.weight"},
    {"feed_forward.w3.weight", "mlp.up_proj.weight"},
    {"attention_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
}};

struct LlamaMixtureRow {
  std::string_view ours, qwen3, mixtral;
  bool stacked = false;  // an expert is a tensor there
};

// As kLlamaLayer, in layers with a mixture in place of feed_forward.
constexpr std::array<LlamaMixtureRow, 4> kLlamaMixture = {{
    {"moe.router.gate.weight", "mlp.gate.weight", "block_sparse_moe.gate.weight"},
    {"moe.experts.w1", "mlp.experts.{}.gate_proj.weight", "block_sparse_moe.experts.{}.w1.weight", true},
    {"moe.experts.w2", "mlp.experts.{}.down_proj.weight", "block_sparse_moe.experts.{}.w2.weight", true},
    {"moe.experts.w3", "mlp.experts.{}.up_proj.weight", "block_sparse_moe.experts.{}.w3.weight", true},
}};

// Which models and layers have a parameter.
enum class Place : uint8_t {
  Everywhere,
  LatentQueries,
  WholeQueries,
  DenseLayers,
  Mixtures,
  Biases,
  SharedExperts,
  Experts
};

struct DeepSeekRow {
  std::string_view ours;
  std::string_view hf;
  Place place = Place::Everywhere;
};

// As kLlamaLayer. Rows that are turned are pairs of neighbours on both sides.
constexpr std::array<DeepSeekRow, 21> kDeepSeekLayer = {{
    {"attention.wq.weight", "self_attn.q_proj.weight", Place::WholeQueries},
    {"attention.wq_a.weight", "self_attn.q_a_proj.weight", Place::LatentQueries},
    {"attention.q_norm.weight", "self_attn.q_a_layernorm.weight", Place::LatentQueries},
    {"attention.wq_b.weight", "self_attn.q_b_proj.weight", Place::LatentQueries},
    {"attention.wkv_a.weight", "self_attn.kv_a_proj_with_mqa.weight"},
    {"attention.kv_norm.weight", "self_attn.kv_a_layernorm.weight"},
    {"attention.wkv_b.weight", "self_attn.kv_b_proj.weight"},
    {"attention.wo.weight", "self_attn.o_proj.weight"},
    {"attention_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"feed_forward.w1.weight", "mlp.gate_proj.weight", Place::DenseLayers},
    {"feed_forward.w2.weight", "mlp.down_proj.weight", Place::DenseLayers},
    {"feed_forward.w3.weight", "mlp.up_proj.weight", Place::DenseLayers},
    {"moe.router.gate.weight", "mlp.gate.weight", Place::Mixtures},
    {"moe.expert_bias", "mlp.gate.e_score_correction_bias", Place::Biases},
    {"moe.shared_experts.w1.weight", "mlp.shared_experts.gate_proj.weight", Place::SharedExperts},
    {"moe.shared_experts.w2.weight", "mlp.shared_experts.down_proj.weight", Place::SharedExperts},
    {"moe.shared_experts.w3.weight", "mlp.shared_experts.up_proj.weight", Place::SharedExperts},
    {"moe.experts.w1", "mlp.experts.{}.gate_proj.weight", Place::Experts},
    {"moe.experts.w2", "mlp.experts.{}.down_proj.weight", Place::Experts},
    {"moe.experts.w3", "mlp.experts.{}.up_proj.weight", Place::Experts},
}};

struct GptRow {
  std::string_view name;
  bool transposed = false;
  bool is_bias() const { return name.ends_with(".bias"); }
};

// Rests of names, after "h.{i}.".
constexpr std::array<GptRow, 12> kGptLayer = {{
    {"ln_1.weight"},
    {"ln_1.bias"},
    {"attn.c_attn.weight", true},
    {"attn.c_attn.bias"},
    {"attn.c_proj.weight", true},
    {"attn.c_proj.bias"},
    {"ln_2.weight"},
    {"ln_2.bias"},
    {"mlp.c_fc.weight", true},
    {"mlp.c_fc.bias"},
    {"mlp.c_proj.weight", true},
    {"mlp.c_proj.bias"},
}};

// "layers.3.ffn_norm.weight" -> "ffn_norm.weight", and "3" in `layer`; none for another prefix or a layer we lack.
std::optional<std::string_view> after_layer(std::string_view name, std::string_view prefix, int64_t layers,
                                            std::string& layer) {
  if (name.substr(0, prefix.size()) != prefix) return std::nullopt;
  name.remove_prefix(prefix.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto number = parse_int(name.substr(0, dot));
  if (!number || *number < 0 || *number >= layers || std::to_string(*number) != name.substr(0, dot))
    return std::nullopt;
  layer = std::to_string(*number);
  return name.substr(dot + 1);
}

HfTensor plain(std::string name) {
  HfTensor tensor;
  tensor.hf_name = std::move(name);
  return tensor;
}

std::optional<HfTensor> llama_mixture_tensor(std::string_view rest, const std::string& layer, const HfConfig& config) {
  for (const LlamaMixtureRow& row : kLlamaMixture) {
    if (row.ours != rest) continue;
    const bool mixtral = config.architecture == "MixtralForCausalLM";
    HfTensor tensor = plain("model.layers." + layer + "." + std::string(mixtral ? row.mixtral : row.qwen3));
    if (row.stacked) tensor.slices = config.integer("num_experts");
    return tensor;
  }
  return std::nullopt;
}

std::optional<HfTensor> llama_tensor(std::string_view name, const HfConfig& config) {
  if (name == "tok_embeddings.weight") return plain("model.embed_tokens.weight");
  if (name == "norm.weight") return plain("model.norm.weight");
  if (name == "output.weight") return plain(config.flag("tied") ? "model.embed_tokens.weight" : "lm_head.weight");
  std::string layer;
  const auto rest = after_layer(name, "layers.", config.integer("n_layers"), layer);
  if (!rest) return std::nullopt;
  if (config.has_mixture(*parse_int(layer))) {
    if (rest->starts_with("moe.")) return llama_mixture_tensor(*rest, layer, config);
    if (rest->starts_with("feed_forward.")) return std::nullopt;
  }
  for (const LlamaRow& row : kLlamaLayer) {
    if (row.ours != *rest || (row.if_set && !config.flag(row.if_set))) continue;
    HfTensor tensor = plain("model.layers." + layer + "." + std::string(row.hf));
    if (row.heads != Heads::None) tensor.transform = HfTensor::PermuteHeads;
    if (row.heads == Heads::Query) tensor.heads = config.integer("n_heads");
    if (row.heads == Heads::KeyValue) tensor.heads = config.integer("n_kv_heads");
    if (row.heads == Heads::One) tensor.heads = 1;
    return tensor;
  }
  return std::nullopt;
}

bool has(Place place, int64_t layer, const HfConfig& config) {
  const bool dense = layer < config.integer("n_dense_layers");
  switch (place) {
    case Place::Everywhere: return true;
    case Place::LatentQueries: return config.integer("q_lora_rank") > 0;
    case Place::WholeQueries: return config.integer("q_lora_rank") == 0;
    case Place::DenseLayers: return dense;
    case Place::Biases: return !dense && config.flag("expert_bias");
    case Place::SharedExperts: return !dense && config.integer("num_shared_experts") > 0;
    case Place::Mixtures:
    case Place::Experts: return !dense;
  }
  return false;
}

std::optional<HfTensor> deepseek_tensor(std::string_view name, const HfConfig& config) {
  if (name == "tok_embeddings.weight") return plain("model.embed_tokens.weight");
  if (name == "norm.weight") return plain("model.norm.weight");
  if (name == "output.weight") return plain("lm_head.weight");
  std::string layer;
  const auto rest = after_layer(name, "layers.", config.integer("n_layers"), layer);
  if (!rest) return std::nullopt;
  for (const DeepSeekRow& row : kDeepSeekLayer) {
    if (row.ours != *rest || !has(row.place, *parse_int(layer), config)) continue;
    HfTensor tensor = plain("model.layers." + layer + "." + std::string(row.hf));
    if (row.place == Place::Experts) tensor.slices = config.integer("num_experts");
    return tensor;
  }
  return std::nullopt;
}

std::optional<HfTensor> gpt_tensor(std::string_view name, const HfConfig& config) {
  const auto named = [](const std::string& base, HfTensor::Transform transform) {
    HfTensor tensor = plain("transformer." + base);
    tensor.transform = transform;
    tensor.other_name = base;
    return tensor;
  };
  if (name == "lm_head.weight")
    return config.flag("tied") ? named("wte.weight", HfTensor::None) : plain("lm_head.weight");
  const bool bias = config.flag("bias");
  if (name == "wte.weight" || (name == "wpe.weight" && !config.flag("rope")) || name == "ln_f.weight" ||
      (name == "ln_f.bias" && bias))
    return named(std::string(name), HfTensor::None);
  std::string layer;
  const auto rest = after_layer(name, "h.", config.integer("n_layers"), layer);
  if (!rest) return std::nullopt;
  for (const GptRow& row : kGptLayer)
    if (row.name == *rest && (bias || !row.is_bias()))
      return named(std::string(name), row.transposed ? HfTensor::Transpose : HfTensor::None);
  return std::nullopt;
}

}  // namespace

std::optional<HfTensor> hf_tensor_of(std::string_view model, std::string_view our_name, const HfConfig& config) {
  SFSDP_CHECK(model == config.model, model, " with the config of ", config.model);
  if (model == "llama3") return llama_tensor(our_name, config);
  if (model == "deepseek_v3") return deepseek_tensor(our_name, config);
  SFSDP_CHECK(model == "gpt", "model ", model);
  return gpt_tensor(our_name, config);
}

std::vector<HfTensor> tensors_of(const HfTensor& tensor) {
  if (tensor.slices == 0) return {tensor};
  const size_t at = tensor.hf_name.find("{}");
  SFSDP_CHECK(at != std::string::npos, "slices of ", tensor.hf_name, " have no number in their names");
  std::vector<HfTensor> all;
  for (int64_t i = 0; i < tensor.slices; ++i) {
    all.push_back(tensor);
    all.back().slices = 0;
    all.back().hf_name.replace(at, 2, std::to_string(i));
  }
  return all;
}

bool is_saved_buffer(std::string_view our_name) { return our_name.ends_with(".moe.expert_bias"); }

int64_t source_row(const HfTensor& tensor, int64_t rows, int64_t row) {
  SFSDP_CHECK(row >= 0 && row < rows, "row ", row, " of ", rows, " of ", tensor.hf_name);
  if (tensor.transform != HfTensor::PermuteHeads) return row;
  SFSDP_CHECK(tensor.heads > 0 && rows % (2 * tensor.heads) == 0, rows, " rows of ", tensor.heads, " heads in ",
              tensor.hf_name);
  const int64_t width = rows / tensor.heads;
  const int64_t in_head = row % width;  // 2 i + j: pair i, component j
  return row - in_head + in_head % 2 * (width / 2) + in_head / 2;
}

}  // namespace sfsdp::train

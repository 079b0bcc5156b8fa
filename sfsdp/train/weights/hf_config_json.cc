// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_config_json.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train {
namespace {

using Lines = std::vector<std::pair<std::string, std::string>>;  // key, JSON

std::string json_of(const JsonValue& value);

std::string list_of(const std::vector<std::string>& parts, const char* open, const char* close) {
  return concat(open, join(parts, ", "), close);
}

std::string json_of(const JsonArray& array) {
  std::vector<std::string> parts;
  for (const JsonValue& value : array) parts.push_back(json_of(value));
  return list_of(parts, "[", "]");
}

std::string json_of(const JsonObject& object) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : object) parts.push_back(json_quoted(key) + ": " + json_of(value));
  return list_of(parts, "{", "}");
}

std::string json_of(const JsonValue& value) {
  struct {
    std::string operator()(JsonNull) const { return "null"; }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(uint64_t number) const { return std::to_string(number); }
    std::string operator()(int64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const { return shortest(number); }
    std::string operator()(const std::string& text) const { return json_quoted(text); }
    std::string operator()(const JsonArray& array) const { return json_of(array); }
    std::string operator()(const JsonObject& object) const { return json_of(object); }
  } text;
  return std::visit(text, value.value);
}

class Document {
 public:
  void set(const std::string& key, std::string json) {
    const auto found = std::ranges::find(lines_, key, &Lines::value_type::first);
    if (found != lines_.end())
      found->second = std::move(json);
    else
      lines_.emplace_back(key, std::move(json));
  }
  void set(const std::string& key, int64_t number) { set(key, std::to_string(number)); }
  void set(const std::string& key, double number) { set(key, shortest(number)); }
  void set_text(const std::string& key, std::string_view text) { set(key, json_quoted(text)); }
  void set_flag(const std::string& key, bool flag) { set(key, std::string(flag ? "true" : "false")); }
  void set_if_absent(const std::string& key, int64_t number) {
    if (std::ranges::find(lines_, key, &Lines::value_type::first) == lines_.end()) set(key, number);
  }
  void remove(const std::string& key) {
    std::erase_if(lines_, [&](const auto& line) { return line.first == key; });
  }
  std::string text() const {
    std::vector<std::string> lines;
    for (const auto& [key, json] : lines_) lines.push_back("  " + json_quoted(key) + ": " + json);
    return "{\n" + join(lines, ",\n") + "\n}\n";
  }

 private:
  Lines lines_;
};

// As transformers 4 has them: 5 reads both forms, 4 only this one.
void write_rope(const HfConfig& config, Document& out) {
  out.remove("rope_parameters");
  out.set("rope_theta", config.number("rope_theta"));
  if (!config.flag("rope_scaling")) {
    out.set("rope_scaling", std::string("null"));
    return;
  }
  out.set("rope_scaling",
          concat("{\"rope_type\": \"llama3\", \"factor\": ", shortest(config.number("rope_scaling_factor")),
                 ", \"low_freq_factor\": ", shortest(config.number("rope_low_freq_factor")),
                 ", \"high_freq_factor\": ", shortest(config.number("rope_high_freq_factor")),
                 ", \"original_max_position_embeddings\": ", config.integer("rope_original_max_position"), "}"));
}

// What a class of transformers calls itself in model_type.
const std::map<std::string, std::string>& model_types() {
  static const std::map<std::string, std::string> kTypes = {{"LlamaForCausalLM", "llama"},
                                                            {"MistralForCausalLM", "mistral"},
                                                            {"Qwen2ForCausalLM", "qwen2"},
                                                            {"Qwen3ForCausalLM", "qwen3"},
                                                            {"GPT2LMHeadModel", "gpt2"},
                                                            {"DeepseekV3ForCausalLM", "deepseek_v3"},
                                                            {"DeepseekV2ForCausalLM", "deepseek_v2"},
                                                            {"Qwen3MoeForCausalLM", "qwen3_moe"},
                                                            {"MixtralForCausalLM", "mixtral"}};
  return kTypes;
}

constexpr std::string_view kQwen3Moe = "Qwen3MoeForCausalLM", kMixtral = "MixtralForCausalLM";

void write_llama_mixture(const HfConfig& config, Document& out) {
  const bool mixtral = config.architecture == kMixtral;
  out.remove(mixtral ? "num_experts" : "num_local_experts");
  out.set(mixtral ? "num_local_experts" : "num_experts", config.integer("num_experts"));
  out.set("num_experts_per_tok", config.integer("top_k"));
  if (mixtral) {
    out.set("intermediate_size", config.integer("moe_inter_dim"));
    out.set("router_jitter_noise", 0.0);
    return;
  }
  out.set("moe_intermediate_size", config.integer("moe_inter_dim"));
  out.set_flag("norm_topk_prob", config.flag("route_norm"));
  out.set("decoder_sparse_step", config.integer("moe_layer_step"));
  std::vector<std::string> dense;
  for (int64_t i = 0; i < config.integer("n_dense_layers"); ++i) dense.push_back(std::to_string(i));
  out.set("mlp_only_layers", list_of(dense, "[", "]"));
}

void write_llama(const HfConfig& config, int64_t max_positions, Document& out) {
  out.set("hidden_size", config.integer("dim"));
  out.set("intermediate_size", config.integer("hidden_dim"));
  out.set("num_hidden_layers", config.integer("n_layers"));
  out.set("num_attention_heads", config.integer("n_heads"));
  out.set("num_key_value_heads", config.integer("n_kv_heads"));
  out.set("head_dim", config.integer("head_dim"));
  out.set("vocab_size", config.integer("vocab_size"));
  out.set("rms_norm_eps", config.number("norm_eps"));
  out.set_text("hidden_act", "silu");
  out.set_flag("tie_word_embeddings", config.flag("tied"));
  out.set("attention_dropout", 0.0);
  out.set_if_absent("max_position_embeddings", max_positions);
  const std::string& architecture = config.architecture;
  if (architecture == "LlamaForCausalLM" || architecture == "Qwen3ForCausalLM" || architecture == kQwen3Moe)
    out.set_flag("attention_bias", false);
  if (architecture == "LlamaForCausalLM") out.set_flag("mlp_bias", false);
  // The class has a window of 4096 where the key is missing.
  if (architecture == "MistralForCausalLM" || architecture == kMixtral)
    out.set("sliding_window", config.sliding_window ? std::to_string(*config.sliding_window) : "null");
  if (config.has_mixtures()) write_llama_mixture(config, out);
  write_rope(config, out);
}

void write_gpt(const HfConfig& config, Document& out) {
  out.set("n_embd", config.integer("dim"));
  out.set("n_layer", config.integer("n_layers"));
  out.set("n_head", config.integer("n_heads"));
  out.set("n_positions", config.integer("max_positions"));
  out.set("vocab_size", config.integer("vocab_size"));
  out.set("layer_norm_epsilon", config.number("norm_eps"));
  out.set_text("activation_function", "gelu_new");
  out.set_flag("tie_word_embeddings", config.flag("tied"));
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) out.set(key, 0.0);  // as it was trained
}

void write_yarn(const HfConfig& config, Document& out) {
  out.remove("rope_parameters");
  out.set("rope_theta", config.number("rope_theta"));
  if (!config.flag("yarn")) {
    out.set("rope_scaling", std::string("null"));
    return;
  }
  std::string text =
      concat("{\"rope_type\": \"yarn\", \"factor\": ", shortest(config.number("rope_factor")),
             ", \"original_max_position_embeddings\": ", static_cast<int64_t>(config.number("original_seq_len")));
  for (const char* key : {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"})
    text += concat(", \"", key, "\": ", shortest(config.number(key)));
  out.set("rope_scaling", text + "}");
}

void write_deepseek(const HfConfig& config, int64_t max_positions, Document& out) {
  const std::pair<const char*, const char*> sizes[] = {{"dim", "hidden_size"},
                                                       {"inter_dim", "intermediate_size"},
                                                       {"moe_inter_dim", "moe_intermediate_size"},
                                                       {"n_layers", "num_hidden_layers"},
                                                       {"n_dense_layers", "first_k_dense_replace"},
                                                       {"n_heads", "num_attention_heads"},
                                                       {"n_heads", "num_key_value_heads"},
                                                       {"vocab_size", "vocab_size"},
                                                       {"kv_lora_rank", "kv_lora_rank"},
                                                       {"qk_nope_head_dim", "qk_nope_head_dim"},
                                                       {"qk_rope_head_dim", "qk_rope_head_dim"},
                                                       {"v_head_dim", "v_head_dim"},
                                                       {"num_experts", "n_routed_experts"},
                                                       {"num_shared_experts", "n_shared_experts"},
                                                       {"top_k", "num_experts_per_tok"},
                                                       {"n_expert_groups", "n_group"},
                                                       {"n_limited_groups", "topk_group"}};
  for (const auto& [ours, theirs] : sizes) out.set(theirs, config.integer(ours));
  const int64_t rank = config.integer("q_lora_rank");
  out.set("q_lora_rank", rank > 0 ? std::to_string(rank) : "null");
  out.set("rms_norm_eps", config.number("norm_eps"));
  out.set("routed_scaling_factor", config.number("route_scale"));
  out.set_flag("norm_topk_prob", config.flag("route_norm"));
  const bool v3 = config.architecture == kDeepSeekV3, groups = config.integer("n_expert_groups") > 1;
  if (v3) out.set("num_nextn_predict_layers", int64_t{0});
  out.set_text("hidden_act", "silu");
  out.set_text("scoring_func", v3 ? "sigmoid" : "softmax");
  out.set_text("topk_method", v3 ? "noaux_tc" : groups ? "group_limited_greedy" : "greedy");
  if (!v3) out.set_flag("mlp_bias", false);
  out.set_flag("tie_word_embeddings", false);
  out.set_flag("attention_bias", false);
  out.set_if_absent("max_position_embeddings", max_positions);
  write_yarn(config, out);
}

// Scores say which of the two it is; what transformers' class computes, whatever its config.json says, must be as it is here.
std::string deepseek_architecture(const HfConfig& config) {
  const bool v3 = std::get<std::string>(config.args.at("score_func")) == "sigmoid";
  const auto refuse = [&](const std::string& what, const std::string& expected) {
    throw UserError(concat("model.args.", what,
                           v3 ? ", which no DeepSeek-V3 of transformers has"
                              : " with softmax scores, which no DeepSeek-V2 of transformers has",
                           "\n  expected ", expected,
                           " for a Hugging Face folder; without checkpoint.last_save_in_hf the model trains as it is"));
  };
  if (config.flag("expert_bias") != v3)
    refuse(v3 ? "expert_bias = false" : "expert_bias = true", v3 ? "true" : "false");
  if (!v3 && config.flag("route_norm")) refuse("route_norm = true", "false");
  if (!v3 && config.integer("num_shared_experts") == 0) refuse("num_shared_experts = 0", "at least 1");
  const int64_t scores = config.integer("scores_of_group"), theirs = v3 ? 2 : 1;
  if (scores != theirs && config.integer("n_expert_groups") > 1)
    refuse(concat("scores_of_group = ", scores), concat(theirs));
  constexpr double kLatentEps = 1e-6;
  if (const double eps = config.number("latent_norm_eps"); eps != kLatentEps)
    refuse(concat("latent_norm_eps = ", eps), concat(kLatentEps));
  if (const double eps = config.number("final_norm_eps"); eps != config.number("norm_eps"))
    refuse(concat("final_norm_eps = ", eps), concat("norm_eps, ", config.number("norm_eps")));
  return std::string(v3 ? kDeepSeekV3 : kDeepSeekV2);
}

std::string_view name_of(ir::DType dtype) {
  return dtype == ir::DType::bf16 ? "bfloat16" : dtype == ir::DType::f16 ? "float16" : "float32";
}

bool is_architecture(const JsonValue& document, const std::string& architecture) {
  const JsonValue* list = document.find("architectures");
  const auto* names = list ? list->as<JsonArray>() : nullptr;
  const auto* name = names && names->size() == 1 ? names->front().as<std::string>() : nullptr;
  return name && *name == architecture;
}

// transformers' GPT-2 has biases and learned positions, whatever its config.json says.
void expect_gpt2(const HfConfig& config) {
  const auto refuse = [](const char* what, const char* expected) {
    throw UserError(concat(what, ", which no GPT-2 of transformers has\n  expected ", expected,
                           " for a Hugging Face folder; without checkpoint.last_save_in_hf the model trains as it is"));
  };
  if (config.flag("rope")) refuse("model.args.rope = true", "learned positions");
  if (!config.flag("bias")) refuse("model.args.bias = false", "biases");
}

// Qwen3's class has norms on q and k, Mixtral's none; neither has biases.
std::string mixture_architecture(const HfConfig& config) {
  const auto refuse = [](const std::string& what, const char* expected) {
    throw UserError(concat("model.args.", what, ", which no mixture of transformers has\n  expected ", expected,
                           " for a Hugging Face folder; without checkpoint.last_save_in_hf the model trains as it is"));
  };
  if (config.flag("qkv_bias")) refuse("qkv_bias = true with experts", "no biases");
  if (config.flag("qk_norm")) return std::string(kQwen3Moe);
  const char* expected = "Mixtral's experts in every layer, or qk_norm = true, as Qwen3-MoE has them,";
  if (!config.flag("route_norm")) refuse("route_norm = false without qk_norm", expected);
  for (int64_t i = 0; i < config.integer("n_layers"); ++i)
    if (!config.has_mixture(i)) refuse(concat("a dense layer ", i, " without qk_norm"), expected);
  return std::string(kMixtral);
}

// The rows of the first of these, names of one kind of matrix by layer; none where no layer has one.
std::optional<int64_t> rows_of_feed_forward(const std::vector<HfSource>& parameters) {
  for (const HfSource& p : parameters)
    if (p.name.starts_with("layers.") && p.name.ends_with(".feed_forward.w1.weight")) return p.shape.at(0);
  return std::nullopt;
}

int64_t rows_of(const std::vector<HfSource>& parameters, const std::string& name) {
  const auto found = std::ranges::find(parameters, name, &HfSource::name);
  SFSDP_CHECK(found != parameters.end() && !found->shape.empty(), "no matrix ", name, " among the parameters");
  return found->shape[0];
}

}  // namespace

HfConfig hf_config_of_model(const std::string& model, const std::map<std::string, HfConfig::Value>& args,
                            const std::vector<HfSource>& parameters, const HfConfig* from) {
  HfConfig config;
  config.model = model;
  config.args = args;
  if (model == "gpt") {
    expect_gpt2(config);
    config.architecture = "GPT2LMHeadModel";
    return config;
  }
  if (model == "deepseek_v3") {
    config.architecture = deepseek_architecture(config);
    return config;
  }
  SFSDP_CHECK(model == "llama3", "model ", model);
  const bool bias = config.flag("qkv_bias"), norm = config.flag("qk_norm");
  if (bias && norm)
    throw UserError(
        "model.args.qkv_bias and model.args.qk_norm are both true, which no architecture of transformers has"
        "\n  expected one of them for a Hugging Face folder: Qwen2 has biases, Qwen3 norms");
  config.architecture = config.has_mixtures() ? mixture_architecture(config)
                        : bias                ? "Qwen2ForCausalLM"
                        : norm                ? "Qwen3ForCausalLM"
                                              : "LlamaForCausalLM";
  if (from && from->model == model && from->flag("qkv_bias") == bias && from->flag("qk_norm") == norm &&
      from->has_mixtures() == config.has_mixtures()) {
    config.architecture = from->architecture;
    config.sliding_window = from->sliding_window;
  }
  if (const auto width = rows_of_feed_forward(parameters))
    config.args["hidden_dim"] = *width;
  else if (config.integer("hidden_dim") == 0)  // no layer has one, but every class asks for it
    config.args["hidden_dim"] = config.integer("moe_inter_dim");
  config.args["head_dim"] = rows_of(parameters, "layers.0.attention.wq.weight") / config.integer("n_heads");
  // The model has it as a number, Hugging Face as an integer.
  if (const auto* original = std::get_if<double>(&config.args["rope_original_max_position"]))
    config.args["rope_original_max_position"] = static_cast<int64_t>(*original);
  return config;
}

std::string hf_config_json(const HfConfig& config, ir::DType dtype, int64_t max_positions, const std::string& base) {
  Document out;
  if (!base.empty()) {
    const JsonValue document = parse_json(base, "config.json");
    const auto* members = document.as<JsonObject>();
    if (members && is_architecture(document, config.architecture))
      for (const auto& [key, value] : *members) out.set(key, json_of(value));
  }
  out.set("architectures", "[" + json_quoted(config.architecture) + "]");
  out.set_text("model_type", model_types().at(config.architecture));
  out.remove("dtype");
  out.remove("auto_map");             // classes in Python files of the folder, which are not written
  out.remove("quantization_config");  // what is written are the numbers themselves
  out.set_text("torch_dtype", name_of(dtype));
  if (config.model == "gpt")
    write_gpt(config, out);
  else if (config.model == "deepseek_v3")
    write_deepseek(config, max_positions, out);
  else
    write_llama(config, max_positions, out);
  return out.text();
}

}  // namespace sfsdp::train

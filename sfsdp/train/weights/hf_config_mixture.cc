// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/train/weights/hf_config_parts.h"

namespace sfsdp::train {
namespace {

// YaRN's numbers in rope_scaling (transformers 4) or rope_parameters (5); their defaults are transformers'.
void read_yarn(const Section& top, std::map<std::string, HfConfig::Value>& args) {
  const JsonValue* old_object = top.find("rope_scaling");
  const JsonValue* new_object = top.find("rope_parameters");
  if (old_object && new_object)
    top.refuse("rope_scaling", "given beside rope_parameters", "one of them: transformers 4's or 5's");
  const auto theta = top.find_number("rope_theta");
  args["rope_theta"] = theta.value_or(10000);
  args["yarn"] = false;
  const JsonValue* object = old_object ? old_object : new_object;
  if (!object) return;
  const Section rope(*object, top.file(), old_object ? "rope_scaling." : "rope_parameters.");
  const auto inside = rope.find_number("rope_theta");
  if (theta && inside && *theta != *inside)
    top.refuse("rope_theta", concat(*theta), concat("the same as inside the rope object, ", *inside));
  if (inside) args["rope_theta"] = *inside;
  const auto new_type = rope.find_text("rope_type"), old_type = rope.find_text("type");
  const std::string type = new_type ? *new_type : old_type.value_or("missing");
  if (type != "default" && type != "yarn")
    rope.refuse("rope_type", quote_safe(type), "\"default\" or \"yarn\"; no other is supported");
  rope.must_be_flag("truncate", true);
  if (type == "yarn") {
    args["yarn"] = true;
    args["rope_factor"] = rope.number("factor");
    args["original_seq_len"] = rope.number("original_max_position_embeddings");
    args["beta_fast"] = rope.find_number("beta_fast").value_or(32);
    args["beta_slow"] = rope.find_number("beta_slow").value_or(1);
    args["mscale"] = rope.find_number("mscale", true).value_or(0);
    args["mscale_all_dim"] = rope.find_number("mscale_all_dim", true).value_or(0);
  }
  for (const auto& [key, value] : rope.members())
    if (!rope.was_asked_for(key) && !value.as<JsonNull>())
      rope.refuse(quote_safe(key), describe(value), "only keys of the rope types default and yarn");
}

// The first layers that have no mixture by mlp_only_layers: our model has no other list of them.
int64_t first_dense_layers(const Section& top, int64_t layers) {
  const JsonValue* list = top.find("mlp_only_layers");
  if (!list) return 0;
  const auto* numbers = list->as<JsonArray>();
  if (!numbers) top.refuse("mlp_only_layers", describe(*list), "a list of numbers of layers");
  std::vector<uint64_t> found;
  for (const JsonValue& number : *numbers) {
    const auto* layer = number.as<uint64_t>();
    if (!layer || *layer >= static_cast<uint64_t>(layers))
      top.refuse("mlp_only_layers", "[.. " + describe(number) + " ..]",
                 concat("numbers below num_hidden_layers = ", layers));
    found.push_back(*layer);
  }
  std::ranges::sort(found);
  for (size_t i = 0; i < found.size(); ++i)
    if (found[i] != i)
      top.refuse("mlp_only_layers", concat("[.. ", found[i], " ..], without ", i),
                 "the first layers alone, [0, 1, ..]; no other is supported");
  return static_cast<int64_t>(found.size());
}

// transformers 4 and 5 have one name each, and read both.
int64_t experts_of(const Section& top, const char* name, const char* other) {
  const auto given = top.find_integer(name), also = top.find_integer(other);
  if (given && also && *given != *also) top.refuse(other, concat(*also), concat("the same as ", name, " = ", *given));
  return given ? *given : also ? *also : top.integer(name);
}

}  // namespace

void read_llama_mixture(const Section& top, Experts experts, HfConfig& config) {
  auto& args = config.args;
  args["num_experts"] = int64_t{0};
  if (experts == Experts::None) return;
  const bool qwen = experts == Experts::Qwen3;
  const int64_t count =
      qwen ? experts_of(top, "num_experts", "num_local_experts") : experts_of(top, "num_local_experts", "num_experts");
  const int64_t chosen = top.integer("num_experts_per_tok");
  if (chosen > count) top.refuse("num_experts_per_tok", concat(chosen), concat("at most the ", count, " experts"));
  args["num_experts"] = count;
  args["top_k"] = chosen;
  args["moe_inter_dim"] = top.integer(qwen ? "moe_intermediate_size" : "intermediate_size");
  args["route_norm"] = qwen ? top.flag("norm_topk_prob", false) : true;
  args["n_dense_layers"] = qwen ? first_dense_layers(top, config.integer("n_layers")) : 0;
  args["moe_layer_step"] = qwen ? top.find_integer("decoder_sparse_step").value_or(1) : 1;
  if (!qwen) top.must_be_number("router_jitter_noise", 0);
  if (top.flag("output_router_logits", false))
    config.notices.push_back(concat(top.file(),
                                    ": output_router_logits = true is not applied: no loss is added for"
                                    " experts that are chosen unevenly"));
}

void read_deepseek_v3(const Section& top, HfConfig& config) {
  top.must_be_text("model_type", "deepseek_v3");
  top.must_be_text("hidden_act", "silu");
  top.must_be_text("scoring_func", "sigmoid");
  top.must_be_text("topk_method", "noaux_tc");
  for (const char* key : {"attention_bias", "tie_word_embeddings"}) top.must_be_flag(key, false);
  top.must_be_flag("rope_interleave", true);
  top.must_be_number("attention_dropout", 0);
  top.must_be_number("pretraining_tp", 1);
  top.must_be_number("moe_layer_freq", 1);
  const int64_t heads = top.integer("num_attention_heads");
  if (const auto kv = top.find_integer("num_key_value_heads"); kv && *kv != heads)
    top.refuse("num_key_value_heads", concat(*kv), concat("null or num_attention_heads = ", heads));
  const std::pair<const char*, const char*> sizes[] = {{"dim", "hidden_size"},
                                                       {"inter_dim", "intermediate_size"},
                                                       {"moe_inter_dim", "moe_intermediate_size"},
                                                       {"vocab_size", "vocab_size"},
                                                       {"kv_lora_rank", "kv_lora_rank"},
                                                       {"qk_nope_head_dim", "qk_nope_head_dim"},
                                                       {"qk_rope_head_dim", "qk_rope_head_dim"},
                                                       {"v_head_dim", "v_head_dim"},
                                                       {"num_experts", "n_routed_experts"},
                                                       {"top_k", "num_experts_per_tok"},
                                                       {"n_expert_groups", "n_group"},
                                                       {"n_limited_groups", "topk_group"}};
  config.model = "deepseek_v3";
  auto& args = config.args;
  for (const auto& [ours, theirs] : sizes) args[ours] = top.integer(theirs);
  args["n_heads"] = heads;
  args["n_layers"] = top.integer("num_hidden_layers", kMaxLayers);
  args["n_dense_layers"] = top.find_integer_or_zero("first_k_dense_replace").value_or(0);
  args["q_lora_rank"] = top.find_integer("q_lora_rank").value_or(0);
  args["num_shared_experts"] = top.find_integer_or_zero("n_shared_experts").value_or(0);
  args["norm_eps"] = args["final_norm_eps"] = top.number("rms_norm_eps");
  args["latent_norm_eps"] = 1e-6;  // whatever the file says
  args["score_func"] = std::string("sigmoid");
  args["scores_of_group"] = int64_t{2};
  args["route_norm"] = top.flag("norm_topk_prob", true);
  args["route_scale"] = top.find_number("routed_scaling_factor").value_or(1);
  read_yarn(top, args);
  for (const char* key : {"head_dim", "qk_head_dim", "num_local_experts"}) top.find_integer(key);  // said twice
  if (const auto more = top.find_integer_or_zero("num_nextn_predict_layers"); more && *more > 0)
    config.notices.push_back(concat(top.file(), ": num_nextn_predict_layers = ", *more,
                                    " is not applied: modules that predict further tokens are not read"));
}

}  // namespace sfsdp::train

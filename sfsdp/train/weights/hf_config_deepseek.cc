// SPDX-License-Identifier: BSD-3-Clause
#include <string>
#include <utility>

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

// What V2 and V3 have alike: all but the routing of tokens.
void read_deepseek(const Section& top, HfConfig& config) {
  top.must_be_text("hidden_act", "silu");
  for (const char* key : {"attention_bias", "tie_word_embeddings"}) top.must_be_flag(key, false);
  top.must_be_flag("rope_interleave", true);
  top.must_be_number("attention_dropout", 0);
  top.must_be_number("pretraining_tp", 1);
  top.must_be_number("moe_layer_freq", 1);
  const int64_t heads = top.integer("num_attention_heads");
  if (const auto kv = top.find_integer("num_key_value_heads"); kv && *kv != heads)
    top.refuse("num_key_value_heads", concat(*kv), concat("null or num_attention_heads = ", heads));
  if (!top.has("q_lora_rank"))  // both classes have a rank of their own where the key is missing
    top.refuse("q_lora_rank", "missing", "an integer, or null for queries that are made at once");
  const std::pair<const char*, const char*> sizes[] = {{"dim", "hidden_size"},
                                                       {"inter_dim", "intermediate_size"},
                                                       {"moe_inter_dim", "moe_intermediate_size"},
                                                       {"vocab_size", "vocab_size"},
                                                       {"kv_lora_rank", "kv_lora_rank"},
                                                       {"qk_nope_head_dim", "qk_nope_head_dim"},
                                                       {"qk_rope_head_dim", "qk_rope_head_dim"},
                                                       {"v_head_dim", "v_head_dim"},
                                                       {"num_experts", "n_routed_experts"},
                                                       {"top_k", "num_experts_per_tok"}};
  config.model = "deepseek_v3";
  auto& args = config.args;
  for (const auto& [ours, theirs] : sizes) args[ours] = top.integer(theirs);
  args["n_heads"] = heads;
  args["n_layers"] = top.integer("num_hidden_layers", kMaxLayers);
  args["n_dense_layers"] = top.find_integer_or_zero("first_k_dense_replace").value_or(0);
  args["q_lora_rank"] = top.find_integer("q_lora_rank").value_or(0);
  args["norm_eps"] = args["final_norm_eps"] = top.number("rms_norm_eps");
  args["latent_norm_eps"] = 1e-6;  // whatever the file says
  args["route_scale"] = top.find_number("routed_scaling_factor").value_or(1);
  read_yarn(top, args);
  for (const char* key : {"head_dim", "qk_head_dim", "num_local_experts"}) top.find_integer(key);  // said twice
}

}  // namespace

void read_deepseek_v3(const Section& top, HfConfig& config) {
  top.must_be_text("model_type", "deepseek_v3");
  top.must_be_text("scoring_func", "sigmoid");
  top.must_be_text("topk_method", "noaux_tc");
  read_deepseek(top, config);
  auto& args = config.args;
  args["num_shared_experts"] = top.find_integer_or_zero("n_shared_experts").value_or(0);
  args["score_func"] = std::string("sigmoid");
  args["expert_bias"] = true;
  args["n_expert_groups"] = top.integer("n_group");
  args["n_limited_groups"] = top.integer("topk_group");
  args["scores_of_group"] = int64_t{2};
  args["route_norm"] = top.flag("norm_topk_prob", true);
  if (const auto more = top.find_integer_or_zero("num_nextn_predict_layers"); more && *more > 0)
    config.notices.push_back(concat(top.file(), ": num_nextn_predict_layers = ", *more,
                                    " is not applied: modules that predict further tokens are not read"));
}

void read_deepseek_v2(const Section& top, HfConfig& config) {
  top.must_be_text("model_type", "deepseek_v2");
  top.must_be_text("scoring_func", "softmax");
  top.must_be_flag("mlp_bias", false);
  if (top.flag("norm_topk_prob", false))
    top.refuse(
        "norm_topk_prob", "true",
        "false: transformers computes that whatever stands there, where DeepSeek's own code divides the chosen "
        "weights by their sum and leaves routed_scaling_factor out; set it to false for what transformers computes");
  const std::string method = top.find_text("topk_method").value_or("greedy");
  if (method != "greedy" && method != "group_limited_greedy")
    top.refuse("topk_method", quote_safe(method), "\"greedy\" or \"group_limited_greedy\"; no other is supported");
  const bool groups = method == "group_limited_greedy";
  read_deepseek(top, config);
  auto& args = config.args;
  args["num_shared_experts"] = top.integer("n_shared_experts");
  args["score_func"] = std::string("softmax");
  args["expert_bias"] = false;
  for (const auto& [ours, theirs] : {std::pair{"n_expert_groups", "n_group"}, {"n_limited_groups", "topk_group"}}) {
    top.find_integer(theirs);  // which "greedy" does not read
    args[ours] = groups ? top.integer(theirs) : 1;
  }
  const bool scored = config.integer("n_expert_groups") > 1;
  args["scores_of_group"] = int64_t{scored ? 1 : 2};  // of one group nothing reads it: the default
  args["route_norm"] = false;
  if (const auto alpha = top.find_number("aux_loss_alpha", true); alpha && *alpha > 0)
    config.notices.push_back(concat(top.file(), ": aux_loss_alpha = ", *alpha,
                                    " is not applied: no loss is added for experts that are chosen unevenly"));
}

}  // namespace sfsdp::train

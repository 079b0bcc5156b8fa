// SPDX-License-Identifier: BSD-3-Clause
// DeepSeek-V2 and V3 in Hugging Face folders: arguments, names of tensors, and the config of an export.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/testing/published_configs.h"
#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/hf_config_json.h"
#include "sfsdp/train/weights/hf_names.h"
#include "sfsdp/train/weights/hf_parameters.h"

namespace sfsdp::train::hf_config_deepseek_test {
namespace {

using testing::kDeepSeekV2, testing::kDeepSeekV2Lite;

// The text with the first `from` replaced, which must be there.
std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string as_v3(std::string text) {
  text = with(text, "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM");
  text = with(text, "\"deepseek_v2\"", "\"deepseek_v3\"");
  text = with(text, "\"softmax\"", "\"sigmoid\"");
  return with(text, "\"group_limited_greedy\"", "\"noaux_tc\"");
}

HfConfig parse(const std::string& text) { return parse_hf_config(text, "dir/config.json"); }

std::string message_of(const std::string& text) {
  try {
    parse(text);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

using Args = std::map<std::string, HfConfig::Value>;

std::string text_of(const HfConfig& config, const char* name) { return std::get<std::string>(config.args.at(name)); }

}  // namespace

TEST_CASE("hf_config: DeepSeek-V2 takes the groups of the best scores, without biases and norms of weights") {
  const HfConfig config = parse(kDeepSeekV2);
  CHECK(config.model == "deepseek_v3");
  CHECK(config.architecture == "DeepseekV2ForCausalLM");
  CHECK(config.integer("dim") == 5120);
  CHECK(config.integer("inter_dim") == 12288);
  CHECK(config.integer("n_layers") == 60);
  CHECK(config.integer("n_dense_layers") == 1);
  CHECK(config.integer("q_lora_rank") == 1536);
  CHECK(config.integer("num_experts") == 160);
  CHECK(config.integer("num_shared_experts") == 2);
  CHECK(config.integer("top_k") == 6);
  CHECK(config.integer("n_expert_groups") == 8);
  CHECK(config.integer("n_limited_groups") == 3);
  CHECK(config.integer("scores_of_group") == 1);
  CHECK(text_of(config, "score_func") == "softmax");
  CHECK_FALSE(config.flag("expert_bias"));
  CHECK_FALSE(config.flag("route_norm"));
  CHECK(config.number("route_scale") == 16);
  CHECK(config.number("norm_eps") == 1e-6);
  CHECK(config.flag("yarn"));
  CHECK(config.number("mscale") == 1);
  CHECK(config.number("mscale_all_dim") == 1);
  REQUIRE(config.notices.size() == 1);
  CHECK(config.notices[0].starts_with("dir/config.json: aux_loss_alpha = 0.001 is not applied"));
  CHECK(parse(with(kDeepSeekV2, "\"aux_loss_alpha\": 0.001, ", "")).notices.empty());
}

TEST_CASE("hf_config: DeepSeek-V2-Lite makes queries at once and takes the best of all experts, whatever its groups") {
  const HfConfig config = parse(kDeepSeekV2Lite);
  CHECK(config.integer("q_lora_rank") == 0);
  CHECK(config.integer("n_expert_groups") == 1);
  CHECK(config.integer("n_limited_groups") == 1);
  CHECK(config.number("mscale") == 0.707);
  CHECK(config.number("mscale_all_dim") == 0.707);
  const std::string grouped = with(kDeepSeekV2Lite, "\"n_group\": 1", "\"n_group\": 8");
  CHECK((parse(grouped).args == config.args));
  // As transformers 5 writes it: no method of its own, no groups.
  const std::string without =
      with(kDeepSeekV2Lite, "\"topk_group\": 1, \"topk_method\": \"greedy\"", "\"topk_group\": null");
  CHECK((parse(with(without, "\"n_group\": 1", "\"n_group\": null")).args == config.args));
}

TEST_CASE("hf_config: what a DeepSeek-V2 may ask for and our model does not compute is refused by name") {
  struct Case {
    const char *from, *to, *says;
  };
  const Case cases[] = {
      {"\"norm_topk_prob\": false", "\"norm_topk_prob\": true",
       "norm_topk_prob = true\n  expected false: transformers computes that whatever stands there"},
      {"\"norm_topk_prob\": false", "\"norm_topk_prob\": true", "set it to false for what transformers computes"},
      {"\"softmax\"", "\"sigmoid\"", "scoring_func = \"sigmoid\"\n  expected \"softmax\""},
      {"\"group_limited_greedy\"", "\"noaux_tc\"", "topk_method = \"noaux_tc\"\n  expected \"greedy\" or"},
      {"\"n_group\": 8, ", "", "n_group = missing"},
      {"\"topk_group\": 3", "\"topk_group\": null", "topk_group = missing"},
      {"\"q_lora_rank\": 1536, ", "", "q_lora_rank = missing\n  expected an integer, or null"},
      {"\"q_lora_rank\": 1536", "\"q_lora_rank\": 0", "q_lora_rank = 0"},
      {"\"n_shared_experts\": 2", "\"n_shared_experts\": 0", "n_shared_experts = 0"},
      {"\"n_shared_experts\": 2, ", "", "n_shared_experts = missing"},
      {"\"moe_layer_freq\": 1", "\"moe_layer_freq\": 2", "moe_layer_freq = 2"},
      {"\"attention_bias\": false", "\"attention_bias\": true", "attention_bias = true"},
      {"\"attention_bias\": false", "\"mlp_bias\": true", "mlp_bias = true"},
      {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "tie_word_embeddings = true"},
      {"\"num_key_value_heads\": 128", "\"num_key_value_heads\": 64", "num_key_value_heads = 64"},
      {"\"num_experts_per_tok\": 6, ", "", "num_experts_per_tok = missing"},
      {"\"deepseek_v2\"", "\"deepseek_v3\"", "model_type = \"deepseek_v3\""},
      {"\"yarn\"", "\"linear\"", "rope_scaling.rope_type = \"linear\""},
  };
  for (const Case& bad : cases) {
    CAPTURE(std::string(bad.to));
    const std::string message = message_of(with(kDeepSeekV2, bad.from, bad.to));
    CAPTURE(message);
    CHECK(message.starts_with("dir/config.json: "));
    CHECK(message.find(bad.says) != std::string::npos);
    CHECK(message.find("expected") != std::string::npos);
  }
}

TEST_CASE("hf_config: DeepSeek-V3 has biases of experts, and counts a group's two best scores") {
  const std::string text = as_v3(kDeepSeekV2);
  const HfConfig config = parse(text);
  CHECK(config.architecture == "DeepseekV3ForCausalLM");
  CHECK(config.flag("expert_bias"));
  CHECK(config.integer("scores_of_group") == 2);
  CHECK(text_of(config, "score_func") == "sigmoid");
  CHECK(parse(with(text, "\"norm_topk_prob\": false", "\"norm_topk_prob\": true")).flag("route_norm"));
  CHECK(message_of(with(text, "\"sigmoid\"", "\"softmax\"")).find("scoring_func = \"softmax\"") != std::string::npos);
}

TEST_CASE("hf_names: a DeepSeek-V2 has V3's names but for the biases of experts") {
  const HfConfig v2 = parse(kDeepSeekV2), lite = parse(kDeepSeekV2Lite), v3 = parse(as_v3(kDeepSeekV2));
  const auto name = [](const HfConfig& config, const char* ours) {
    const auto tensor = hf_tensor_of("deepseek_v3", ours, config);
    return tensor ? tensor->hf_name : "none";
  };
  CHECK(name(v3, "layers.1.moe.expert_bias") == "model.layers.1.mlp.gate.e_score_correction_bias");
  for (const HfConfig& config : {v2, lite}) {
    CHECK(name(config, "layers.1.moe.expert_bias") == "none");
    CHECK(name(config, "layers.1.moe.router.gate.weight") == "model.layers.1.mlp.gate.weight");
    CHECK(name(config, "layers.1.moe.experts.w2") == "model.layers.1.mlp.experts.{}.down_proj.weight");
    CHECK(name(config, "layers.1.moe.shared_experts.w3.weight") == "model.layers.1.mlp.shared_experts.up_proj.weight");
    CHECK(name(config, "layers.0.feed_forward.w1.weight") == "model.layers.0.mlp.gate_proj.weight");
    CHECK(name(config, "layers.0.attention.wkv_a.weight") == "model.layers.0.self_attn.kv_a_proj_with_mqa.weight");
  }
  CHECK(name(v2, "layers.1.attention.wq_b.weight") == "model.layers.1.self_attn.q_b_proj.weight");
  CHECK(name(v2, "layers.1.attention.wq.weight") == "none");
  CHECK(name(lite, "layers.1.attention.wq.weight") == "model.layers.1.self_attn.q_proj.weight");
  CHECK(name(lite, "layers.1.attention.wq_a.weight") == "none");
  // Their rows are pairs of neighbours on both sides.
  CHECK(hf_tensor_of("deepseek_v3", "layers.1.attention.wq.weight", lite)->transform == HfTensor::None);
}

TEST_CASE("hf_parameters: biases of experts are asked for in a DeepSeek-V3 alone") {
  const auto refusal = [](const std::string& text) {
    std::vector<HfSource> all = {{"tok_embeddings.weight", {102400, 2048}},
                                 {"norm.weight", {2048}},
                                 {"output.weight", {102400, 2048}},
                                 {"layers.0.attention.wkv_a.weight", {576, 2048}},
                                 {"layers.0.attention.kv_norm.weight", {512}},
                                 {"layers.0.attention.wkv_b.weight", {4096, 512}},
                                 {"layers.0.attention.wo.weight", {2048, 2048}},
                                 {"layers.0.attention_norm.weight", {2048}},
                                 {"layers.0.ffn_norm.weight", {2048}},
                                 {"layers.0.attention.wq.weight", {3072, 2048}},
                                 {"layers.0.moe.shared_experts.w1.weight", {2816, 2048}},
                                 {"layers.0.moe.shared_experts.w3.weight", {2816, 2048}},
                                 {"layers.0.moe.shared_experts.w2.weight", {2048, 2816}},
                                 {"layers.0.moe.router.gate.weight", {64, 2048}},
                                 {"layers.0.moe.experts.w1", {64, 1408, 2048}},
                                 {"layers.0.moe.experts.w3", {64, 1408, 2048}},
                                 {"layers.0.moe.experts.w2", {64, 2048, 1408}}};
    const std::string one_layer = with(with(text, "\"num_hidden_layers\": 27", "\"num_hidden_layers\": 1"),
                                       "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 0");
    try {
      expect_parameters_of(parse(one_layer), all, "C", "F");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refusal(kDeepSeekV2Lite).empty());
  const std::string v3 = as_v3(with(kDeepSeekV2Lite, "\"greedy\"", "\"group_limited_greedy\""));
  CHECK(refusal(v3).starts_with("C: has no parameter layers.0.moe.expert_bias\n"));
}

TEST_CASE("hf_config_json: the config of a DeepSeek's folder comes back with the same arguments") {
  for (const std::string& text : {kDeepSeekV2, kDeepSeekV2Lite, as_v3(kDeepSeekV2)}) {
    const HfConfig config = parse(text);
    CAPTURE(config.architecture);
    const HfConfig of_model = hf_config_of_model(config.model, config.args, {});
    CHECK(of_model.architecture == config.architecture);
    for (const std::string& base : {text, std::string()}) {
      const std::string written = hf_config_json(of_model, ir::DType::bf16, 4096, base);
      const HfConfig again = parse(written);
      CHECK((again.args == config.args));
      CHECK(again.architecture == config.architecture);
      CHECK(written.find("auto_map") == std::string::npos);
      CHECK((written.find("\"bos_token_id\": 100000") != std::string::npos) == (base == text));
    }
  }
}

TEST_CASE("hf_config_json: a DeepSeek that no class of transformers computes is refused by name") {
  const auto refusal = [](const std::string& text, const char* name, HfConfig::Value value) {
    const HfConfig config = parse(text);
    Args args = config.args;
    args[name] = std::move(value);
    try {
      hf_config_of_model(config.model, args, {});
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string v3 = as_v3(kDeepSeekV2),
                    none_v2 = " with softmax scores, which no DeepSeek-V2 of transformers has\n",
                    none_v3 = ", which no DeepSeek-V3 of transformers has\n";
  CHECK(refusal(kDeepSeekV2, "expert_bias", true)
            .starts_with("model.args.expert_bias = true" + none_v2 + "  expected false for"));
  CHECK(refusal(kDeepSeekV2, "route_norm", true).starts_with("model.args.route_norm = true" + none_v2));
  CHECK(refusal(kDeepSeekV2, "num_shared_experts", int64_t{0})
            .starts_with("model.args.num_shared_experts = 0" + none_v2 + "  expected at least 1"));
  CHECK(refusal(kDeepSeekV2, "scores_of_group", int64_t{2})
            .starts_with("model.args.scores_of_group = 2" + none_v2 + "  expected 1"));
  CHECK(refusal(kDeepSeekV2Lite, "scores_of_group", int64_t{2}).empty());  // there is one group
  CHECK(refusal(kDeepSeekV2, "latent_norm_eps", 1e-5).starts_with("model.args.latent_norm_eps = 1e-05" + none_v2));
  CHECK(refusal(kDeepSeekV2, "final_norm_eps", 1e-5).starts_with("model.args.final_norm_eps = 1e-05" + none_v2));
  CHECK(refusal(v3, "expert_bias", false).starts_with("model.args.expert_bias = false" + none_v3 + "  expected true"));
  CHECK(refusal(v3, "scores_of_group", int64_t{1}).starts_with("model.args.scores_of_group = 1" + none_v3));
  CHECK(refusal(v3, "score_func", std::string("softmax"))
            .starts_with("model.args.expert_bias = true" + none_v2 + "  expected false"));
}

}  // namespace sfsdp::train::hf_config_deepseek_test

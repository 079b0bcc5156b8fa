// SPDX-License-Identifier: BSD-3-Clause
// Qwen3-MoE and Mixtral in Hugging Face folders: arguments, names of tensors, shapes, and the config of an export.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/train/weights/hf_config.h"
#include "sfsdp/train/weights/hf_config_json.h"
#include "sfsdp/train/weights/hf_names.h"
#include "sfsdp/train/weights/hf_parameters.h"

namespace sfsdp::train::hf_config_mixture_test {
namespace {

// As published with Qwen3 30B-A3B and Mixtral 8x7B v0.1.
const std::string kQwen3Moe = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
  "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
  "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
  "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
  "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 151936})";
const std::string kMixtral = R"({
  "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": true,
  "vocab_size": 32000})";

// The text with the first `from` replaced, which must be there.
std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
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

// A llama3's arguments as the registry has them, with experts.
std::map<std::string, HfConfig::Value> args_of(bool qk_norm, int64_t dense, bool route_norm = true) {
  return {{"dim", int64_t{64}},
          {"n_layers", int64_t{2}},
          {"n_heads", int64_t{4}},
          {"n_kv_heads", int64_t{2}},
          {"vocab_size", int64_t{100}},
          {"multiple_of", int64_t{256}},
          {"hidden_dim", int64_t{0}},
          {"head_dim", int64_t{0}},
          {"norm_eps", 1e-5},
          {"rope_theta", 1e6},
          {"tied", false},
          {"qkv_bias", false},
          {"qk_norm", qk_norm},
          {"rope_scaling", false},
          {"num_experts", int64_t{8}},
          {"top_k", int64_t{3}},
          {"moe_inter_dim", int64_t{24}},
          {"route_norm", route_norm},
          {"n_dense_layers", dense},
          {"moe_layer_step", int64_t{1}}};
}

}  // namespace

TEST_CASE("hf_config: Qwen3-MoE's experts, their scores divided by their sum, in all layers but those that are named") {
  const HfConfig config = parse(kQwen3Moe);
  CHECK(config.model == "llama3");
  CHECK(config.integer("num_experts") == 128);
  CHECK(config.integer("top_k") == 8);
  CHECK(config.integer("moe_inter_dim") == 768);
  CHECK(config.integer("hidden_dim") == 6144);
  CHECK(config.integer("head_dim") == 128);
  CHECK(config.flag("route_norm"));
  CHECK(config.flag("qk_norm"));
  CHECK_FALSE(config.flag("qkv_bias"));
  CHECK(config.number("rope_theta") == 1e6);
  CHECK_FALSE(config.sliding_window);
  CHECK(config.notices.empty());
  CHECK(config.has_mixture(0));
  CHECK(config.has_mixture(47));

  const HfConfig dense = parse(with(kQwen3Moe, "\"mlp_only_layers\": []", "\"mlp_only_layers\": [1, 0]"));
  CHECK_FALSE(dense.has_mixture(1));
  CHECK(dense.has_mixture(2));
  const HfConfig third = parse(with(kQwen3Moe, "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 3"));
  CHECK_FALSE(third.has_mixture(0));
  CHECK_FALSE(third.has_mixture(1));
  CHECK(third.has_mixture(2));
  CHECK_FALSE(third.has_mixture(3));
  CHECK(third.has_mixture(5));
  // transformers' own defaults
  CHECK_FALSE(parse(with(kQwen3Moe, "\"norm_topk_prob\": true,", "")).flag("route_norm"));
  CHECK(parse(with(kQwen3Moe, "\"mlp_only_layers\": [],", "")).has_mixture(0));
  CHECK(parse(with(kQwen3Moe, "\"head_dim\": 128, ", "")).integer("head_dim") == 64);
  CHECK(parse(with(kQwen3Moe, "\"num_experts\"", "\"num_local_experts\"")).integer("num_experts") == 128);
}

TEST_CASE("hf_config: Mixtral's experts are of intermediate_size, in every layer") {
  const HfConfig config = parse(kMixtral);
  CHECK(config.model == "llama3");
  CHECK(config.integer("num_experts") == 8);
  CHECK(config.integer("top_k") == 2);
  CHECK(config.integer("moe_inter_dim") == 14336);
  CHECK(config.flag("route_norm"));
  CHECK_FALSE(config.flag("qk_norm"));
  CHECK(config.integer("head_dim") == 128);
  CHECK_FALSE(config.sliding_window);
  CHECK(config.notices.empty());
  CHECK(config.has_mixture(0));
  CHECK(parse(with(kMixtral, "\"sliding_window\": null", "\"sliding_window\": 4096")).sliding_window == 4096);
  CHECK_FALSE(parse(with(kMixtral, "\"sliding_window\": null,", "")).sliding_window);
}

TEST_CASE("hf_config: a window of Qwen3-MoE is one of all layers, where it is used") {
  const std::string set = with(kQwen3Moe, "\"sliding_window\": null", "\"sliding_window\": 512");
  CHECK_FALSE(parse(set).sliding_window);
  CHECK(parse(with(set, "\"use_sliding_window\": false", "\"use_sliding_window\": true")).sliding_window == 512);
}

TEST_CASE("hf_config: a loss for uneven experts is not applied, and that is said") {
  for (const std::string& text : {kQwen3Moe, kMixtral}) {
    const HfConfig config = parse(with(text, "\"output_router_logits\": false", "\"output_router_logits\": true"));
    REQUIRE(config.notices.size() == 1);
    CHECK(config.notices[0].starts_with("dir/config.json: output_router_logits = true is not applied"));
  }
}

TEST_CASE("hf_config: what mixtures may ask for and our model does not compute is refused by name") {
  struct Case {
    const std::string& base;
    const char *from, *to, *says;
  };
  const Case cases[] = {
      {kQwen3Moe, "\"num_experts\": 128", "\"num_experts\": 0", "num_experts = 0"},
      {kQwen3Moe, "\"num_experts\": 128, ", "", "num_experts = missing"},
      {kQwen3Moe, "\"num_experts\": 128", "\"num_experts\": 128, \"num_local_experts\": 64", "num_local_experts = 64"},
      {kQwen3Moe, "\"num_experts_per_tok\": 8", "\"num_experts_per_tok\": 129", "at most the 128 experts"},
      {kQwen3Moe, "\"moe_intermediate_size\": 768, ", "", "moe_intermediate_size = missing"},
      {kQwen3Moe, "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0, 2]", "[0, 1, ..]; no other is supported"},
      {kQwen3Moe, "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0, 0]", "no other is supported"},
      {kQwen3Moe, "\"mlp_only_layers\": []", "\"mlp_only_layers\": [48]", "numbers below num_hidden_layers = 48"},
      {kQwen3Moe, "\"mlp_only_layers\": []", "\"mlp_only_layers\": 3", "a list of numbers"},
      {kQwen3Moe, "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 0", "decoder_sparse_step"},
      {kQwen3Moe, "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias = true"},
      {kQwen3Moe, "\"num_key_value_heads\": 4, ", "", "num_key_value_heads = missing"},
      {kMixtral, "\"num_local_experts\": 8, ", "", "num_local_experts = missing"},
      {kMixtral, "\"num_local_experts\": 8", "\"num_local_experts\": 8, \"router_jitter_noise\": 0.1",
       "router_jitter_noise = 0.1"},
      {kMixtral, "\"mixtral\"", "\"mistral\"", "model_type = \"mistral\""},
  };
  for (const Case& bad : cases) {
    CAPTURE(std::string(bad.to));
    const std::string message = message_of(with(bad.base, bad.from, bad.to));
    CAPTURE(message);
    CHECK(message.starts_with("dir/config.json: "));
    CHECK(message.find(bad.says) != std::string::npos);
    CHECK(message.find("expected") != std::string::npos);
  }
}

TEST_CASE("hf_names: experts are tensors of their own, under the names of each class") {
  const auto expect = [](const HfConfig& config, const char* ours, const std::string& theirs, int64_t slices) {
    CAPTURE(ours);
    const auto tensor = hf_tensor_of("llama3", ours, config);
    REQUIRE(tensor);
    CHECK(tensor->hf_name == theirs);
    CHECK(tensor->slices == slices);
    CHECK(tensor->transform == HfTensor::None);
  };
  const HfConfig qwen = parse(with(kQwen3Moe, "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0]"));
  expect(qwen, "layers.3.moe.router.gate.weight", "model.layers.3.mlp.gate.weight", 0);
  expect(qwen, "layers.3.moe.experts.w1", "model.layers.3.mlp.experts.{}.gate_proj.weight", 128);
  expect(qwen, "layers.3.moe.experts.w2", "model.layers.3.mlp.experts.{}.down_proj.weight", 128);
  expect(qwen, "layers.3.moe.experts.w3", "model.layers.3.mlp.experts.{}.up_proj.weight", 128);
  expect(qwen, "layers.0.feed_forward.w1.weight", "model.layers.0.mlp.gate_proj.weight", 0);
  for (const char* name : {"layers.0.moe.experts.w1", "layers.3.feed_forward.w1.weight", "layers.3.moe.expert_bias",
                           "layers.3.moe.experts.w4", "layers.48.moe.experts.w1"})
    CHECK_FALSE(hf_tensor_of("llama3", name, qwen));
  const HfConfig mixtral = parse(kMixtral);
  expect(mixtral, "layers.3.moe.router.gate.weight", "model.layers.3.block_sparse_moe.gate.weight", 0);
  expect(mixtral, "layers.3.moe.experts.w1", "model.layers.3.block_sparse_moe.experts.{}.w1.weight", 8);
  expect(mixtral, "layers.3.moe.experts.w2", "model.layers.3.block_sparse_moe.experts.{}.w2.weight", 8);
  expect(mixtral, "layers.3.moe.experts.w3", "model.layers.3.block_sparse_moe.experts.{}.w3.weight", 8);
}

TEST_CASE("hf_config_json: a mixture made by flavor is Qwen3's with norms on q and k, else Mixtral's") {
  std::vector<HfSource> sources = {{"layers.0.attention.wq.weight", {64, 64}}};
  const HfConfig mixtral = hf_config_of_model("llama3", args_of(false, 0), sources);
  CHECK(mixtral.architecture == "MixtralForCausalLM");
  const HfConfig read = parse_hf_config(hf_config_json(mixtral, ir::DType::bf16, 512, ""), "c");
  CHECK(read.integer("moe_inter_dim") == 24);
  CHECK(read.integer("num_experts") == 8);
  CHECK(read.integer("top_k") == 3);
  CHECK_FALSE(read.sliding_window);
  CHECK(read.notices.empty());

  sources.push_back({"layers.0.feed_forward.w1.weight", {256, 64}});
  const HfConfig qwen = hf_config_of_model("llama3", args_of(true, 1, false), sources);
  CHECK(qwen.architecture == "Qwen3MoeForCausalLM");
  const HfConfig again = parse_hf_config(hf_config_json(qwen, ir::DType::bf16, 512, ""), "c");
  CHECK(again.integer("hidden_dim") == 256);
  CHECK(again.integer("moe_inter_dim") == 24);
  CHECK(again.integer("n_dense_layers") == 1);
  CHECK_FALSE(again.flag("route_norm"));
  CHECK(again.notices.empty());

  const auto refused = [&](const std::map<std::string, HfConfig::Value>& args) {
    CHECK_THROWS_WITH_AS(hf_config_of_model("llama3", args, sources), doctest::Contains("which no mixture of"),
                         UserError);
  };
  refused(args_of(false, 1));
  refused(args_of(false, 0, false));
  auto biases = args_of(false, 0);
  biases["qkv_bias"] = true;
  refused(biases);
}

TEST_CASE("hf_config_json: the config of a mixture's folder comes back with the same arguments") {
  for (const std::string& text : {kQwen3Moe, kMixtral}) {
    const HfConfig config = parse(text);
    const HfConfig again = parse_hf_config(hf_config_json(config, ir::DType::f32, 64, text), "written");
    CHECK((again.args == config.args));
    CHECK(again.architecture == config.architecture);
    CHECK(again.notices.empty());
  }
}

TEST_CASE("hf_parameters: a mixture's experts are asked for, stacked") {
  const HfConfig config = parse(with(kMixtral, "\"num_hidden_layers\": 32", "\"num_hidden_layers\": 1"));
  std::vector<HfSource> whole = {{"tok_embeddings.weight", {32000, 4096}},
                                 {"norm.weight", {4096}},
                                 {"output.weight", {32000, 4096}},
                                 {"layers.0.attention.wq.weight", {4096, 4096}},
                                 {"layers.0.attention.wk.weight", {1024, 4096}},
                                 {"layers.0.attention.wv.weight", {1024, 4096}},
                                 {"layers.0.attention.wo.weight", {4096, 4096}},
                                 {"layers.0.attention_norm.weight", {4096}},
                                 {"layers.0.ffn_norm.weight", {4096}},
                                 {"layers.0.moe.router.gate.weight", {8, 4096}},
                                 {"layers.0.moe.experts.w1", {8, 14336, 4096}},
                                 {"layers.0.moe.experts.w3", {8, 14336, 4096}},
                                 {"layers.0.moe.experts.w2", {8, 4096, 14336}}};
  CHECK_NOTHROW(expect_parameters_of(config, whole, "C", "F"));
  for (size_t i = 9; i < whole.size(); ++i) {
    std::vector<HfSource> other = whole;
    ++other[i].shape[0];
    CHECK_THROWS_WITH_AS(expect_parameters_of(config, other, "C", "F"),
                         doctest::Contains(("C: parameter " + whole[i].name).c_str()), UserError);
  }
}

}  // namespace sfsdp::train::hf_config_mixture_test

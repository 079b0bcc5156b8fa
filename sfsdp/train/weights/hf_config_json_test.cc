// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_config_json.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"

namespace sfsdp::train::hf_config_json_test {
namespace {

// As the registry has a llama3 made by flavor: widths by a rule, the position as a number.
std::map<std::string, HfConfig::Value> llama_args(bool bias, bool norm, bool scaled) {
  return {{"dim", int64_t{64}},
          {"n_layers", int64_t{2}},
          {"n_heads", int64_t{4}},
          {"n_kv_heads", int64_t{2}},
          {"vocab_size", int64_t{100}},
          {"multiple_of", int64_t{256}},
          {"hidden_dim", int64_t{0}},
          {"head_dim", int64_t{0}},
          {"norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"tied", false},
          {"qkv_bias", bias},
          {"qk_norm", norm},
          {"rope_scaling", scaled},
          {"rope_scaling_factor", 8.0},
          {"rope_low_freq_factor", 1.0},
          {"rope_high_freq_factor", 4.0},
          {"rope_original_max_position", 8192.0}};
}

const std::vector<HfSource> kSources = {{"layers.0.attention.wq.weight", {64, 64}},
                                        {"layers.0.feed_forward.w1.weight", {256, 64}}};

}  // namespace

TEST_CASE("hf_config_json: a model made by flavor has an architecture by its flags, and widths by its shapes") {
  const auto architecture = [](bool bias, bool norm) {
    return hf_config_of_model("llama3", llama_args(bias, norm, false), kSources).architecture;
  };
  CHECK(architecture(false, false) == "LlamaForCausalLM");
  CHECK(architecture(true, false) == "Qwen2ForCausalLM");
  CHECK(architecture(false, true) == "Qwen3ForCausalLM");
  CHECK_THROWS_WITH_AS(architecture(true, true), doctest::Contains("no architecture of transformers"), UserError);

  const HfConfig config = hf_config_of_model("llama3", llama_args(false, false, true), kSources);
  const HfConfig read = parse_hf_config(hf_config_json(config, ir::DType::bf16, 512, ""), "c");
  CHECK(read.dtype == "bfloat16");
  CHECK(read.integer("hidden_dim") == 256);
  CHECK(read.integer("head_dim") == 16);
  CHECK(read.number("rope_scaling_factor") == 8.0);
  CHECK(read.integer("rope_original_max_position") == 8192);
  CHECK(read.notices.empty());

  HfConfig mistral = config;
  mistral.architecture = "MistralForCausalLM";
  mistral.sliding_window = 4096;
  CHECK(hf_config_of_model("llama3", llama_args(false, false, true), kSources, &mistral).architecture ==
        "MistralForCausalLM");
  CHECK(hf_config_of_model("llama3", llama_args(false, true, true), kSources, &mistral).architecture ==
        "Qwen3ForCausalLM");
}

TEST_CASE("hf_config_json: a GPT without biases or with rotary embedding is refused by name, an untied one is not") {
  const auto write = [](bool tied, bool bias, bool rope) {
    const std::map<std::string, HfConfig::Value> args = {{"dim", int64_t{8}},
                                                         {"n_layers", int64_t{1}},
                                                         {"n_heads", int64_t{2}},
                                                         {"vocab_size", int64_t{9}},
                                                         {"max_positions", int64_t{16}},
                                                         {"norm_eps", 1e-5},
                                                         {"tied", tied},
                                                         {"bias", bias},
                                                         {"rope", rope},
                                                         {"rope_theta", 10000.0}};
    return hf_config_json(hf_config_of_model("gpt", args, {}), ir::DType::f32, 16, "");
  };
  CHECK(parse_hf_config(write(true, true, false), "c").flag("tied"));
  CHECK_FALSE(parse_hf_config(write(false, true, false), "c").flag("tied"));
  CHECK_THROWS_WITH_AS(write(true, false, false), doctest::Contains("model.args.bias = false, which no GPT-2"),
                       UserError);
  CHECK_THROWS_WITH_AS(write(true, true, true), doctest::Contains("model.args.rope = true, which no GPT-2"), UserError);
}

TEST_CASE("hf_config_json: other keys of the config it came from are kept, those of another architecture are not") {
  const HfConfig config = hf_config_of_model("llama3", llama_args(false, false, false), kSources);
  const std::string base = R"({"architectures": ["LlamaForCausalLM"], "bos_token_id": 7, "eos_token_id": [1, 2],
    "dtype": "float32", "hidden_size": 1, "max_position_embeddings": 4096, "note": "a\"\u00e9\n", "x": {"y": [null, true]},
    "initializer_range": 0.02, "below": -3, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})";
  const std::string text = hf_config_json(config, ir::DType::f16, 512, base);
  const JsonValue document = parse_json(text, "c");
  CHECK(describe(*document.find("bos_token_id")) == "7");
  CHECK(text.find(R"("eos_token_id": [1, 2])") != std::string::npos);
  CHECK(*document.find("note")->as<std::string>() == "a\"\u00e9\n");
  CHECK(text.find(R"("x": {"y": [null, true]})") != std::string::npos);
  CHECK(text.find(R"("below": -3)") != std::string::npos);
  CHECK(describe(*document.find("max_position_embeddings")) == "4096");
  CHECK_FALSE(document.find("rope_parameters"));
  CHECK_FALSE(document.find("dtype"));
  const HfConfig read = hf_config_of(document, "c");
  CHECK(read.dtype == "float16");
  CHECK(read.integer("dim") == 64);
  CHECK(read.number("rope_theta") == 500000.0);

  const std::string other =
      hf_config_json(config, ir::DType::f16, 512, R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 3})");
  CHECK(other.find("n_embd") == std::string::npos);
  CHECK(describe(*parse_json(other, "c").find("max_position_embeddings")) == "512");
}

TEST_CASE("hf_config_json: an export of what was read from float8 is not said to be quantised") {
  const std::string base = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
 "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64, "rms_norm_eps": 1e-05, "rope_theta": 100.0,
 "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}})";
  const HfConfig config = parse_hf_config(base, "config.json");
  CHECK(config.weight_block);
  const std::string written = hf_config_json(config, ir::DType::bf16, 64, base);
  CHECK(written.find("quantization_config") == std::string::npos);
  CHECK_FALSE(parse_hf_config(written, "written").weight_block);
}

TEST_CASE("hf_config_json: Mistral's window is always written, as its class has one where the key is missing") {
  HfConfig config = hf_config_of_model("llama3", llama_args(false, false, false), kSources);
  config.architecture = "MistralForCausalLM";
  CHECK(hf_config_json(config, ir::DType::f32, 512, "").find(R"("sliding_window": null)") != std::string::npos);
  config.sliding_window = 64;
  CHECK(parse_hf_config(hf_config_json(config, ir::DType::f32, 512, ""), "c").sliding_window == 64);
}

}  // namespace sfsdp::train::hf_config_json_test

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_config.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::train::hf_config_test {

namespace {

// Llama 3.1 8B, as transformers 4 writes it.
const std::string kLlama4 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
  "vocab_size": 128256})";

// The same, transformers 5.
const std::string kLlama5 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "dtype": "bfloat16", "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
  "rope_parameters": {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "rope_theta": 500000,
                      "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "tie_word_embeddings": false, "vocab_size": 128256})";

const std::string kGpt2 = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
  "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257})";

// As published with Qwen2.5 7B, Qwen3 0.6B and Mistral 7B v0.1.
const std::string kQwen2 = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
  "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944,
  "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
  "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
  "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 152064})";
const std::string kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
  "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 151936})";
const std::string kMistral = R"({
  "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
  "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000})";

// The text with the first `from` replaced, which must be there.
std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string message_of(const std::string& text) {
  try {
    parse_hf_config(text, "dir/config.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Refused {
  const std::string& base;
  const char* from;
  const char* to;
  const char* says;
};

void expect_refused(const std::vector<Refused>& cases) {
  for (const Refused& bad : cases) {
    CAPTURE(std::string(bad.to));
    const std::string message = message_of(with(bad.base, bad.from, bad.to));
    CAPTURE(message);
    CHECK(contains(message, "dir/config.json"));
    CHECK(contains(message, bad.says));
    CHECK(contains(message, "expected"));
  }
}

}  // namespace

TEST_CASE("hf_config: Llama 3.1 8B reads the same from transformers 4 and 5") {
  for (const std::string& text : {kLlama4, kLlama5}) {
    const HfConfig config = parse_hf_config(text, "config.json");
    CHECK(config.model == "llama3");
    CHECK(config.dtype == "bfloat16");
    CHECK(config.integer("dim") == 4096);
    CHECK(config.integer("n_layers") == 32);
    CHECK(config.integer("n_heads") == 32);
    CHECK(config.integer("n_kv_heads") == 8);
    CHECK(config.integer("vocab_size") == 128256);
    CHECK(config.integer("hidden_dim") == 14336);
    CHECK(config.integer("head_dim") == 128);
    CHECK(config.number("norm_eps") == 1e-5);
    CHECK(config.number("rope_theta") == 500000);
    CHECK(config.flag("rope_scaling"));
    CHECK(config.number("rope_scaling_factor") == 8);
    CHECK(config.number("rope_low_freq_factor") == 1);
    CHECK(config.number("rope_high_freq_factor") == 4);
    CHECK(config.integer("rope_original_max_position") == 8192);
    CHECK_FALSE(config.flag("tied"));
    CHECK_FALSE(config.flag("qkv_bias"));
    CHECK_FALSE(config.flag("qk_norm"));
    CHECK(config.args.size() == 18);
    CHECK(config.architecture == "LlamaForCausalLM");
    CHECK_FALSE(config.sliding_window);
  }
}

TEST_CASE("hf_config: no scaling, tied weights, keys left to their defaults") {
  const size_t at = kLlama4.find("\"rope_scaling\"");
  const size_t end = kLlama4.find("\"rope_theta\"");
  const std::string without = kLlama4.substr(0, at) + kLlama4.substr(end);
  for (const std::string& text :
       {without, with(without, "\"rope_theta\"", "\"rope_scaling\": null, \"rope_theta\""),
        with(without, "\"rope_theta\": 500000.0", R"("rope_parameters": {"rope_type": "default", "rope_theta": 5e5})"),
        with(without, "\"rope_theta\"",
             R"("rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_theta")"),
        with(without, "\"rope_theta\"", R"("rope_scaling": {"type": "default"}, "rope_theta")")}) {
    const HfConfig config = parse_hf_config(text, "config.json");
    CHECK_FALSE(config.flag("rope_scaling"));
    CHECK(config.number("rope_theta") == 500000);
    CHECK(config.args.count("rope_scaling_factor") == 0);
  }
  CHECK(parse_hf_config(with(kLlama4, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"), "")
            .flag("tied"));
  CHECK(parse_hf_config(with(kLlama4, "\"num_key_value_heads\": 8,", ""), "").integer("n_kv_heads") == 32);
  CHECK(parse_hf_config(with(kLlama5, "\"head_dim\": 128", "\"head_dim\": 64"), "").integer("head_dim") == 64);
  CHECK(parse_hf_config(with(kLlama4, "\"rope_type\"", "\"type\""), "").flag("rope_scaling"));
  CHECK(parse_hf_config(with(kLlama4, "\"torch_dtype\": \"bfloat16\",", ""), "").dtype == "");
}

TEST_CASE("hf_config: Qwen2 has biases, Qwen3 norms and a head_dim of its own, Mistral neither") {
  const HfConfig qwen2 = parse_hf_config(kQwen2, "c");
  CHECK(qwen2.architecture == "Qwen2ForCausalLM");
  CHECK(qwen2.model == "llama3");
  CHECK(qwen2.flag("qkv_bias"));
  CHECK_FALSE(qwen2.flag("qk_norm"));
  CHECK_FALSE(qwen2.flag("tied"));
  CHECK(qwen2.integer("head_dim") == 128);
  CHECK(qwen2.number("norm_eps") == 1e-6);
  CHECK_FALSE(qwen2.sliding_window);
  CHECK(qwen2.notices == std::vector<std::string>{"c: not known here, and not applied: \"use_mrope\""});
  const HfConfig qwen3 = parse_hf_config(kQwen3, "c");
  CHECK(qwen3.architecture == "Qwen3ForCausalLM");
  CHECK(qwen3.model == "llama3");
  CHECK_FALSE(qwen3.flag("qkv_bias"));
  CHECK(qwen3.flag("qk_norm"));
  CHECK(qwen3.flag("tied"));
  CHECK(qwen3.integer("head_dim") == 128);  // not 1024 / 16
  CHECK(qwen3.notices.empty());
  CHECK(parse_hf_config(with(kQwen3, "\"head_dim\": 128,", ""), "").integer("head_dim") == 128);  // its class's default
  const HfConfig mistral = parse_hf_config(kMistral, "c");
  CHECK(mistral.architecture == "MistralForCausalLM");
  CHECK_FALSE(mistral.flag("qkv_bias"));
  CHECK_FALSE(mistral.flag("qk_norm"));
  CHECK(mistral.integer("head_dim") == 128);
  CHECK(mistral.notices.empty());
}

TEST_CASE("hf_config: a sliding window bounds the sequence where a layer has one") {
  const auto window = [](const std::string& text) { return parse_hf_config(text, "c").sliding_window; };
  CHECK(window(kMistral) == 4096);
  CHECK_FALSE(window(with(kMistral, "\"sliding_window\": 4096", "\"sliding_window\": null")));
  CHECK(window(with(kMistral, "\"sliding_window\": 4096, ", "")) == 4096);  // the class's default
  const std::string used = with(kQwen2, "\"use_sliding_window\": false", "\"use_sliding_window\": true");
  CHECK_FALSE(window(used));  // max_window_layers is the number of layers
  CHECK(window(with(used, "\"max_window_layers\": 28", "\"max_window_layers\": 27")) == 131072);
  CHECK(window(with(used, "\"max_window_layers\": 28", "\"max_window_layers\": 0")) == 131072);
  CHECK_FALSE(window(with(kQwen2, "\"max_window_layers\": 28", "\"max_window_layers\": 0")));
  const std::string two = with(used, "\"num_hidden_layers\": 28", "\"num_hidden_layers\": 2");
  const auto types = [&](const std::string& list) {
    return window(with(two, "\"max_window_layers\": 28", "\"max_window_layers\": 0, \"layer_types\": " + list));
  };
  CHECK_FALSE(types(R"(["full_attention", "full_attention"])"));
  CHECK(types(R"(["full_attention", "sliding_attention"])") == 131072);

  const HfConfig mistral = parse_hf_config(kMistral, "c");
  CHECK_NOTHROW(check_sliding_window(mistral, 4096, "dir"));
  CHECK_THROWS_WITH_AS(check_sliding_window(mistral, 4097, "dir"),
                       doctest::Contains("training.seq_len = 4097, but dir/config.json has sliding_window = 4096\n"
                                         "  expected at most 4096"),
                       UserError);
  CHECK_NOTHROW(check_sliding_window(parse_hf_config(kLlama4, "c"), 1 << 20, "dir"));
}

TEST_CASE("hf_config: GPT-2") {
  const HfConfig config = parse_hf_config(kGpt2, "config.json");
  CHECK(config.model == "gpt");
  CHECK(config.integer("dim") == 768);
  CHECK(config.integer("n_layers") == 12);
  CHECK(config.integer("n_heads") == 12);
  CHECK(config.integer("vocab_size") == 50257);
  CHECK(config.integer("max_positions") == 1024);
  CHECK(config.number("norm_eps") == 1e-5);
  CHECK(config.flag("tied"));
  CHECK(config.flag("bias"));
  CHECK_FALSE(config.flag("rope"));
  CHECK(config.args.size() == 9);
  CHECK_FALSE(parse_hf_config(with(kGpt2, "\"n_ctx\"", "\"tie_word_embeddings\": false, \"n_ctx\""), "").flag("tied"));
  REQUIRE(config.notices.size() == 1);
  CHECK(config.notices[0] ==
        "config.json: attn_pdrop = 0.1, embd_pdrop = 0.1, resid_pdrop = 0.1 is not applied: our GPT-2 trains without"
        " dropout");
  std::string without = with(kGpt2, "\"attn_pdrop\": 0.1", "\"attn_pdrop\": 0, \"embd_pdrop\": 0.0");
  CHECK(parse_hf_config(without, "c").notices ==
        std::vector<std::string>{"c: resid_pdrop = 0.1 is not applied: our GPT-2 trains without dropout"});
  without = with(without, "\"resid_pdrop\": 0.1", "\"resid_pdrop\": 0.0");
  CHECK(parse_hf_config(without, "c").notices.empty());
  CHECK(parse_hf_config(kLlama4, "c").notices.empty());
  CHECK(parse_hf_config(with(kGpt2, "\"n_ctx\"", "\"n_inner\": 3072, \"n_ctx\""), "").integer("dim") == 768);
  CHECK(parse_hf_config(with(kGpt2, "\"n_ctx\"", "\"n_inner\": null, \"n_ctx\""), "").integer("dim") == 768);
}

TEST_CASE("hf_config: what our models do not compute is refused, saying what is supported") {
  expect_refused({
      {kLlama4, "LlamaForCausalLM", "GemmaForCausalLM", "Qwen3MoeForCausalLM, MixtralForCausalLM; no other"},
      {kLlama4, "LlamaForCausalLM", "MistralForCausalLM", "model_type = \"llama\"\n  expected \"mistral\""},
      {kLlama4, "[\"LlamaForCausalLM\"]", "[]", "0 of them"},
      {kLlama4, "[\"LlamaForCausalLM\"]", "\"LlamaForCausalLM\"", "architectures"},
      {kLlama4, "\"architectures\": [\"LlamaForCausalLM\"],", "", "architectures = missing"},
      {kLlama4, "\"model_type\": \"llama\"", "\"model_type\": \"mistral\"", "model_type"},
      {kLlama4, "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias = true"},
      {kLlama4, "\"attention_bias\": false", "\"attention_bias\": 0", "true or false"},
      {kLlama4, "\"mlp_bias\": false", "\"mlp_bias\": true", "mlp_bias = true"},
      {kLlama4, "\"silu\"", "\"gelu\"", "expected \"silu\""},
      {kLlama4, "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.5", "attention_dropout = 0.5\n  expected 0;"},
      {kLlama4, "\"attention_dropout\": 0.0", "\"attention_dropout\": -1", "not negative"},
      {kLlama4, "\"pretraining_tp\": 1", "\"pretraining_tp\": 2", "pretraining_tp = 2\n  expected 1;"},
      {kLlama4, "\"use_cache\": true", "\"partial_rotary_factor\": 0.5", "partial_rotary_factor = 0.5\n  expected 1;"},
      {kGpt2, "\"attn_pdrop\": 0.1", "\"attn_pdrop\": \"0.1\"", "attn_pdrop"},
      {kLlama4, "\"rope_type\": \"llama3\"", "\"rope_type\": \"yarn\"", "\"default\" or \"llama3\""},
      {kLlama4, "\"rope_type\": \"llama3\"", "\"rope_type\": 3", "a text"},
      {kLlama4, ", \"rope_type\": \"llama3\"", "", "rope_scaling.rope_type = missing"},
      {kLlama4, "\"low_freq_factor\": 1.0, ", "", "rope_scaling.low_freq_factor = missing"},
      {kLlama4, "\"high_freq_factor\": 4.0", "\"high_freq_factor\": 1.0", "more than low_freq_factor"},
      {kLlama4, "\"factor\": 8.0", "\"factor\": 0.5", "at least 1"},
      {kLlama4, "\"factor\": 8.0", "\"factor\": 8.0, \"beta_fast\": 32", "beta_fast"},
      {kLlama4, "\"rope_theta\": 500000.0,", "", "rope_theta = missing"},
      {kLlama4, "\"rope_theta\": 500000.0", "\"rope_theta\": -1.0", "above 0"},
      {kLlama4, "\"rope_theta\": 500000.0", "\"rope_theta\": \"5e5\"", "above 0"},
      {kLlama4, "\"rope_theta\"", "\"rope_parameters\": {}, \"rope_theta\"", "one of them"},
      {kLlama5, "\"vocab_size\"", "\"rope_theta\": 10000.0, \"vocab_size\"", "the same as inside"},
      {kLlama5, "\"factor\": 8", "\"factor\": 8, \"partial_rotary_factor\": 0.5", "partial_rotary_factor"},
      {kLlama4, "\"hidden_size\": 4096,", "", "hidden_size = missing"},
      {kLlama4, "\"hidden_size\": 4096", "\"hidden_size\": null", "hidden_size = missing"},
      {kLlama4, "\"hidden_size\": 4096", "\"hidden_size\": 4096.0", "an integer from 1"},
      {kLlama4, "\"hidden_size\": 4096", "\"hidden_size\": 0", "an integer from 1"},
      {kLlama4, "\"hidden_size\": 4096", "\"hidden_size\": -4096", "an integer from 1"},
      {kLlama4, "\"hidden_size\": 4096", "\"hidden_size\": 99999999999999999999", "an integer from 1"},
      {kLlama4, "\"hidden_size\": 4096", "\"hidden_size\": 4096, \"hidden_size\": 4096", "twice"},
      {kLlama4, "\"hidden_size\": 4096", "\"hidden_size\": 4100", "a divisor of hidden_size"},
      {kLlama4, "\"num_hidden_layers\": 32", "\"num_hidden_layers\": 1000000", "from 1 to 100000"},
      {kLlama4, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7", "a divisor of num_attention_heads"},
      {kLlama5, "\"head_dim\": 128", "\"head_dim\": 127", "even"},
      {kLlama4, "\"rms_norm_eps\": 1e-05,", "", "rms_norm_eps = missing"},
      {kLlama4, "\"bfloat16\"", "\"int4\"", "float32, bfloat16"},
      {kLlama4, "\"torch_dtype\"", "\"dtype\": \"float32\", \"torch_dtype\"", "the same as dtype"},
      {kLlama4, "\"use_cache\": true", "\"quantization_config\": {}", "quantization_config.quant_method = missing"},
      {kLlama4, "\"vocab_size\": 128256}", "\"vocab_size\": 128256", "invalid JSON"},
      {kGpt2, "\"gelu_new\"", "\"relu\"", "gelu_new"},
      {kGpt2, "\"n_ctx\"", "\"n_inner\": 1000, \"n_ctx\"", "3072"},
      {kGpt2, "\"n_ctx\"", "\"scale_attn_by_inverse_layer_idx\": true, \"n_ctx\"", "scale_attn_by_inverse_layer_idx"},
      {kGpt2, "\"n_head\": 12", "\"n_head\": 7", "a divisor of n_embd"},
      {kGpt2, "\"n_positions\": 1024,", "", "n_positions = missing"},
  });
  CHECK(contains(message_of("[]"), "an object"));
  CHECK(contains(message_of(""), "invalid JSON"));
}

TEST_CASE("hf_config: what Mistral and Qwen may ask for and our model does not compute is refused") {
  expect_refused({
      {kQwen2, "\"silu\"", "\"gelu\"", "hidden_act"},
      {kQwen2, "\"num_key_value_heads\": 4,", "", "num_key_value_heads = missing"},
      {kQwen2, "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1", "attention_dropout = 0.1"},
      {kQwen2, "\"max_window_layers\": 28", "\"max_window_layers\": -1", "max_window_layers"},
      {kQwen2, "\"use_cache\": true", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0}",
       "rope_scaling.rope_type = \"yarn\""},
      {kQwen2, "\"use_cache\": true", "\"layer_types\": [\"full_attention\"]", "layer_types = 1 of them"},
      {kQwen2, "\"use_sliding_window\": false", "\"use_sliding_window\": 1", "true or false"},
      {kQwen3, "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias = true"},
      {kQwen3, "\"head_dim\": 128", "\"head_dim\": 63", "even"},
      {kQwen3, "\"model_type\": \"qwen3\"", "\"model_type\": \"qwen3_moe\"", "model_type"},
      {kMistral, "\"sliding_window\": 4096", "\"sliding_window\": 0", "from 1"},
      {kMistral, "\"num_key_value_heads\": 8,", "", "num_key_value_heads = missing"},
      {kMistral, "\"use_cache\": true", "\"quantization_config\": {\"bits\": 4}", "quantization_config"},
  });
}

// As published with DeepSeek-V3, V3.1 and Qwen3's FP8 folders.
const std::string kFloat8 = R"("quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
  "quant_method": "fp8", "weight_block_size": [128, 64]})";

TEST_CASE("hf_config: float8 in blocks is read, and said") {
  const auto read = [](const std::string& quantization) {
    return parse_hf_config(with(kLlama4, "\"use_cache\": true", quantization), "dir/config.json");
  };
  const HfConfig config = read(kFloat8);
  REQUIRE(config.weight_block);
  CHECK(config.weight_block->rows == 128);
  CHECK(config.weight_block->columns == 64);
  REQUIRE(config.notices.size() == 1);
  CHECK(contains(config.notices[0], "dir/config.json: quantization_config: "));
  CHECK(read(with(kFloat8, "\"fmt\"", "\"scale_fmt\": \"ue8m0\", \"fmt\"")).weight_block);
  CHECK(read(with(kFloat8, "\"fmt\"", "\"modules_to_not_convert\": [\"lm_head\"], \"fmt\"")).weight_block);
  CHECK_FALSE(read("\"quantization_config\": null").weight_block);
  CHECK_FALSE(parse_hf_config(kLlama4, "dir/config.json").weight_block);
}

TEST_CASE("hf_config: other quantised weights are refused by name") {
  const std::string base = with(kLlama4, "\"use_cache\": true", kFloat8);
  expect_refused({
      {base, "\"fp8\"", "\"awq\"", "quantization_config.quant_method = \"awq\"\n  expected \"fp8\""},
      {base, "\"e4m3\"", "\"e5m2\"", "quantization_config.fmt = \"e5m2\"\n  expected \"e4m3\""},
      {base, "\"dynamic\"", "\"static\"", "quantization_config.activation_scheme = \"static\""},
      {base, "\"fmt\"", "\"scale_fmt\": \"e5m0\", \"fmt\"", "quantization_config.scale_fmt = \"e5m0\""},
      {base, ", \"weight_block_size\": [128, 64]", "", "quantization_config.weight_block_size = missing"},
      {base, "[128, 64]", "[128]", "[rows, columns] of a block"},
      {base, "[128, 64]", "128", "[rows, columns] of a block"},
      {base, "[128, 64]", "[128, 0]", "integers from 1"},
      {base, "[128, 64]", "[-1, 64]", "integers from 1"},
      {base, "[128, 64]", "[128, 99999999999]", "integers from 1"},
      {base, "\"fmt\"", "\"bits\": 8, \"fmt\"", "quantization_config.\"bits\" = 8"},
      {kLlama4, "\"use_cache\": true", "\"quantization_config\": [1]", "quantization_config"},
  });
}

TEST_CASE("hf_config: is read from the folder, and a missing one is named") {
  const testing::TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(read_hf_config(folder.path()), doctest::Contains("config.json"), UserError);
  folder.write("config.json", kGpt2);
  CHECK(read_hf_config(folder.path()).model == "gpt");
}

}  // namespace sfsdp::train::hf_config_test

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_names.h"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"

namespace sfsdp::train::hf_names_test {

namespace {

HfConfig llama(bool tied) {
  HfConfig config;
  config.model = "llama3";
  config.args = {{"n_layers", int64_t{12}}, {"n_heads", int64_t{4}}, {"n_kv_heads", int64_t{2}}, {"tied", tied},
                 {"qkv_bias", false},       {"qk_norm", false}};
  return config;
}

HfConfig gpt() {
  HfConfig config;
  config.model = "gpt";
  config.args = {{"n_layers", int64_t{12}}, {"tied", true}, {"bias", true}, {"rope", false}};
  return config;
}

}  // namespace

TEST_CASE("hf_names: Llama's parameters under their Hugging Face names") {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"tok_embeddings.weight", "model.embed_tokens.weight"},
      {"norm.weight", "model.norm.weight"},
      {"output.weight", "lm_head.weight"},
      {"layers.0.attention.wv.weight", "model.layers.0.self_attn.v_proj.weight"},
      {"layers.11.attention.wo.weight", "model.layers.11.self_attn.o_proj.weight"},
      {"layers.3.feed_forward.w1.weight", "model.layers.3.mlp.gate_proj.weight"},
      {"layers.3.feed_forward.w2.weight", "model.layers.3.mlp.down_proj.weight"},
      {"layers.3.feed_forward.w3.weight", "model.layers.3.mlp.up_proj.weight"},
      {"layers.3.attention_norm.weight", "model.layers.3.input_layernorm.weight"},
      {"layers.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"},
  };
  for (const auto& [ours, hf] : names) {
    CAPTURE(ours);
    const auto tensor = hf_tensor_of("llama3", ours, llama(false));
    REQUIRE(tensor);
    CHECK(tensor->hf_name == hf);
    CHECK(tensor->transform == HfTensor::None);
  }
  const auto q = hf_tensor_of("llama3", "layers.1.attention.wq.weight", llama(false));
  REQUIRE(q);
  CHECK(q->hf_name == "model.layers.1.self_attn.q_proj.weight");
  CHECK(q->transform == HfTensor::PermuteHeads);
  CHECK(q->heads == 4);
  const auto k = hf_tensor_of("llama3", "layers.1.attention.wk.weight", llama(false));
  REQUIRE(k);
  CHECK(k->hf_name == "model.layers.1.self_attn.k_proj.weight");
  CHECK(k->transform == HfTensor::PermuteHeads);
  CHECK(k->heads == 2);
  CHECK(hf_tensor_of("llama3", "output.weight", llama(true))->hf_name == "model.embed_tokens.weight");
}

TEST_CASE("hf_names: biases of q and k and the norms' weights are ordered as q and k are") {
  HfConfig config = llama(false);
  const auto of = [&](const std::string& name) { return hf_tensor_of("llama3", "layers.1.attention." + name, config); };
  for (const char* name : {"wq.bias", "wk.bias", "wv.bias", "q_norm.weight", "k_norm.weight"}) CHECK_FALSE(of(name));
  config.args["qkv_bias"] = true;
  REQUIRE(of("wq.bias"));
  CHECK(of("wq.bias")->hf_name == "model.layers.1.self_attn.q_proj.bias");
  CHECK(of("wq.bias")->transform == HfTensor::PermuteHeads);
  CHECK(of("wq.bias")->heads == 4);
  CHECK(of("wk.bias")->hf_name == "model.layers.1.self_attn.k_proj.bias");
  CHECK(of("wk.bias")->heads == 2);
  CHECK(of("wv.bias")->hf_name == "model.layers.1.self_attn.v_proj.bias");
  CHECK(of("wv.bias")->transform == HfTensor::None);
  CHECK_FALSE(of("q_norm.weight"));
  config.args["qk_norm"] = true;
  for (const char* name : {"q_norm", "k_norm"}) {
    const auto norm = of(concat(name, ".weight"));
    REQUIRE(norm);
    CHECK(norm->hf_name == concat("model.layers.1.self_attn.", name, ".weight"));
    CHECK(norm->transform == HfTensor::PermuteHeads);
    CHECK(norm->heads == 1);  // all heads share it
  }
}

TEST_CASE("hf_names: GPT-2's parameters, matrices of the blocks transposed") {
  const std::set<std::string> transposed = {"h.7.attn.c_attn.weight", "h.7.attn.c_proj.weight", "h.7.mlp.c_fc.weight",
                                            "h.7.mlp.c_proj.weight"};
  for (const std::string name :
       {"wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias", "h.7.ln_1.weight", "h.7.ln_1.bias",
        "h.7.attn.c_attn.weight", "h.7.attn.c_attn.bias", "h.7.attn.c_proj.weight", "h.7.attn.c_proj.bias",
        "h.7.ln_2.weight", "h.7.ln_2.bias", "h.7.mlp.c_fc.weight", "h.7.mlp.c_fc.bias", "h.7.mlp.c_proj.weight",
        "h.7.mlp.c_proj.bias"}) {
    CAPTURE(name);
    const auto tensor = hf_tensor_of("gpt", name, gpt());
    REQUIRE(tensor);
    CHECK(tensor->hf_name == "transformer." + name);
    CHECK(tensor->other_name == name);
    CHECK((tensor->transform == HfTensor::Transpose) == (transposed.count(name) == 1));
  }
  CHECK(hf_tensor_of("gpt", "lm_head.weight", gpt())->hf_name == "transformer.wte.weight");
  HfConfig variant = gpt();
  variant.args["tied"] = false;
  CHECK(hf_tensor_of("gpt", "lm_head.weight", variant)->hf_name == "lm_head.weight");
  variant.args["bias"] = false;
  variant.args["rope"] = true;
  for (const char* name : {"wpe.weight", "ln_f.bias", "h.7.ln_1.bias", "h.7.attn.c_attn.bias", "h.7.mlp.c_proj.bias"})
    CHECK_FALSE(hf_tensor_of("gpt", name, variant));
  for (const char* name : {"wte.weight", "ln_f.weight", "h.7.ln_1.weight", "h.7.attn.c_attn.weight"})
    CHECK(hf_tensor_of("gpt", name, variant));
}

TEST_CASE("hf_names: a name the model lacks has no tensor") {
  for (const char* name :
       {"", "layers", "layers.", "layers.0", "layers.0.", "layers.12.ffn_norm.weight", "layers.-1.ffn_norm.weight",
        "layers.01.ffn_norm.weight", "layers.+1.ffn_norm.weight", "layers.x.ffn_norm.weight", "layers.0.ffn_norm.bias",
        "layers.0.attention.wq", "model.norm.weight", "layers.99999999999999999999.ffn_norm.weight"}) {
    CAPTURE(name);
    CHECK_FALSE(hf_tensor_of("llama3", name, llama(false)));
  }
  for (const std::string name :
       {"h.12.ln_1.weight", "h.0.attn.bias", "h.0.attn.masked_bias", "transformer.wte.weight"}) {
    CAPTURE(name);
    CHECK_FALSE(hf_tensor_of("gpt", name, gpt()));
  }
  CHECK_THROWS_AS(hf_tensor_of("gpt", "wte.weight", llama(false)), InternalError);
}

TEST_CASE("hf_names: rotary pairs side by side come from two halves, in each head") {
  const HfTensor q{"q", HfTensor::PermuteHeads, 2, ""};
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < 12; ++row) rows.push_back(source_row(q, 12, row));
  CHECK(rows == std::vector<int64_t>{0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11});
  // the reference's view(H, 2, Dh/2).transpose(1, 2).reshape, written out
  for (const int64_t heads : {1, 3, 32})
    for (const int64_t width : {2, 8, 128}) {
      const HfTensor tensor{"q", HfTensor::PermuteHeads, heads, ""};
      int64_t row = 0;
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < width / 2; ++i)
          for (int64_t j = 0; j < 2; ++j)
            REQUIRE(source_row(tensor, heads * width, row++) == h * width + j * width / 2 + i);
    }
  CHECK(source_row({"v", HfTensor::None, 0, ""}, 12, 7) == 7);
  CHECK(source_row({"c", HfTensor::Transpose, 0, ""}, 12, 7) == 7);
  CHECK_THROWS_AS(source_row(q, 12, 12), InternalError);
  CHECK_THROWS_AS(source_row(q, 12, -1), InternalError);
  CHECK_THROWS_AS(source_row(q, 10, 0), InternalError);  // a head of 5 rows has no pairs
}

}  // namespace sfsdp::train::hf_names_test

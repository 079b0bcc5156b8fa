// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_parameters.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sfsdp/base/error.h"

namespace sfsdp::train::hf_parameters_test {
namespace {

// Two heads of 8 over a width of 12, one of them for keys and values: all widths differ.
const char* const kLlama = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 12,
  "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
  "vocab_size": 30, "rms_norm_eps": 1e-05, "hidden_act": "silu", "tie_word_embeddings": false, "rope_theta": 10000.0,
  "max_position_embeddings": 64})";

std::vector<HfSource> llama_parameters() {
  std::vector<HfSource> all = {{"tok_embeddings.weight", {30, 12}}, {"norm.weight", {12}}, {"output.weight", {30, 12}}};
  for (const std::string layer : {"layers.0.", "layers.1."})
    for (const HfSource& p : std::vector<HfSource>{{"attention.wq.weight", {16, 12}},
                                                   {"attention.wk.weight", {8, 12}},
                                                   {"attention.wv.weight", {8, 12}},
                                                   {"attention.wo.weight", {12, 16}},
                                                   {"feed_forward.w1.weight", {20, 12}},
                                                   {"feed_forward.w2.weight", {12, 20}},
                                                   {"feed_forward.w3.weight", {20, 12}},
                                                   {"attention_norm.weight", {12}},
                                                   {"ffn_norm.weight", {12}}})
      all.push_back({layer + p.name, p.shape});
  return all;
}

std::string message_of(const std::vector<HfSource>& parameters) {
  try {
    expect_parameters_of(parse_hf_config(kLlama, "F"), parameters, "C", "F");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a model of another vocabulary than the folder whose weights it begins with is told so, and what to do") {
  const HfConfig config = parse_hf_config(kLlama, "F");
  auto args = config.args;
  CHECK_NOTHROW(expect_vocabulary_of(config, args, "dir"));
  args["vocab_size"] = int64_t{31};
  CHECK_THROWS_WITH_AS(
      expect_vocabulary_of(config, args, "dir"),
      "the model has vocab_size = 31, but dir/config.json has vocab_size = 30, and the weights there as "
      "many rows\n  expected the same, which tp need not divide: model.args.vocab_size = 30, or other "
      "initial values than checkpoint.initial_load_in_hf gives",
      UserError);
}

TEST_CASE("hf_parameters: each parameter that the config asks for is there, in its shape") {
  const std::vector<HfSource> whole = llama_parameters();
  CHECK(message_of(whole) == "");
  for (size_t i = 0; i < whole.size(); ++i) {
    CAPTURE(whole[i].name);
    std::vector<HfSource> less = whole, other = whole;
    less.erase(less.begin() + static_cast<std::ptrdiff_t>(i));
    CHECK(message_of(less).starts_with("C: has no parameter " + whole[i].name + "\n  expected one of ["));
    ++other[i].shape.back();
    CHECK(message_of(other).starts_with("C: parameter " + whole[i].name + " has shape ["));
  }
}

TEST_CASE("hf_parameters: what shapes do not show is compared by the model's arguments") {
  const HfConfig config = parse_hf_config(kLlama, "F");
  std::map<std::string, std::string> args = texts_of_args(config.args);
  CHECK(args.at("n_heads") == "2");
  CHECK(args.at("norm_eps") == "1e-05");
  CHECK(args.at("rope_theta") == "10000");
  CHECK(args.at("tied") == "false");
  args["multiple_of"] = "256";  // of our model alone
  args["hidden_dim"] = "0";     // by a rule
  CHECK_NOTHROW(expect_args_of(config, "llama3", args, "C", "F"));
  CHECK_NOTHROW(expect_args_of(config, "", {}, "C", "F"));  // a checkpoint of before they were written down
  CHECK_THROWS_WITH_AS(expect_args_of(config, "gpt", {}, "C", "F"),
                       doctest::Contains("C: its model has name = \"gpt\"\n  expected llama3, as F has it"), UserError);
  for (const char* name : {"n_heads", "n_kv_heads", "head_dim", "norm_eps", "rope_theta", "rope_scaling"}) {
    CAPTURE(name);
    auto other = args;
    other[name] = "4";
    CHECK_THROWS_WITH_AS(expect_args_of(config, "llama3", other, "C", "F"),
                         doctest::Contains((std::string("C: its model has ") + name + " = \"4\"\n  expected ").c_str()),
                         UserError);
  }
}

}  // namespace sfsdp::train::hf_parameters_test

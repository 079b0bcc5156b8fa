// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_unread.h"

#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::train::hf_unread_test {
namespace {

struct Tensor {
  std::string name;
  std::string bytes = std::string(8, 'x');
  std::string dtype = "F32";
  std::string shape = "[2]";
};

class Checkpoint {
 public:
  explicit Checkpoint(const std::vector<Tensor>& tensors) {
    std::string header, data;
    for (const auto& [name, bytes, dtype, shape] : tensors) {
      header += concat(header.empty() ? "{" : ",", '"', name, R"(":{"dtype":")", dtype, R"(","shape":)", shape,
                       R"(,"data_offsets":[)", data.size(), ',', data.size() + bytes.size(), "]}");
      data += bytes;
    }
    header += "}";
    static_assert(std::endian::native == std::endian::little);
    const uint64_t size = header.size();
    std::string file(8, '\0');
    std::memcpy(file.data(), &size, 8);
    std::ofstream(folder_ / "model.safetensors", std::ios::binary) << file << header << data;
  }

  // What is said where `read` are the tensors of parameters, without the folder's name; "" if nothing is.
  std::string refusal(const std::set<std::string>& read, const HfConfig& config) const {
    try {
      expect_all_read(SafetensorsCheckpoint::open(folder_.path()), read, config);
      return "";
    } catch (const UserError& error) {
      const std::string text = error.what();
      CHECK(text.starts_with(folder_.path()));
      return text.substr(text.find(": ") + 2);
    }
  }

 private:
  testing::TemporaryFolder folder_;
};

HfConfig llama(bool tied) {
  HfConfig config;
  config.model = "llama3";
  config.args = {{"n_layers", int64_t{1}}, {"tied", tied}};
  return config;
}

HfConfig gpt(bool tied = true) {
  HfConfig config;
  config.model = "gpt";
  config.args = {{"n_layers", int64_t{1}}, {"tied", tied}, {"bias", true}, {"rope", false}};
  return config;
}

constexpr const char* kEmbedding = "model.embed_tokens.weight";

}  // namespace

TEST_CASE("hf_unread: a layer more than config.json counts is refused by name") {
  const Checkpoint two(
      {{kEmbedding}, {"model.layers.1.input_layernorm.weight"}, {"model.layers.1.mlp.up_proj.weight"}});
  CHECK(two.refusal({kEmbedding}, llama(false)) ==
        "2 tensors that the model of config.json has not: \"model.layers.1.input_layernorm.weight\","
        " \"model.layers.1.mlp.up_proj.weight\"\n  expected the tensors of this model alone, as it would train without"
        " these; mend config.json (layers, biases, norms), or remove them from the files");
  std::vector<Tensor> many;
  for (int i = 0; i < 10; ++i) many.push_back({concat("bias.", i)});
  const std::string text = Checkpoint(many).refusal({"bias.0"}, gpt());
  CHECK(text.starts_with("9 tensors that the model of config.json has not: \"bias.1\", "));
  CHECK(text.find("\"bias.8\" and 1 more\n") != std::string::npos);
}

TEST_CASE("hf_unread: constants of old transformers are passed over, each in its family alone") {
  const Checkpoint rotary({{"model.layers.0.self_attn.rotary_emb.inv_freq"}});
  CHECK(rotary.refusal({}, llama(false)).empty());
  CHECK_FALSE(rotary.refusal({}, gpt()).empty());
  const Checkpoint masks({{"h.0.attn.bias"}, {"h.0.attn.masked_bias"}, {"transformer.h.0.attn.bias"}});
  CHECK(masks.refusal({}, gpt()).empty());
  CHECK_FALSE(masks.refusal({}, llama(false)).empty());
  CHECK_FALSE(Checkpoint({{"h.0.attn.c_attn.bias"}}).refusal({}, gpt()).empty());
}

TEST_CASE("hf_unread: the output of a tied model may be there as the embedding's copy alone") {
  const std::string other = std::string(7, 'x') + "y";
  const Checkpoint copy({{kEmbedding}, {"lm_head.weight"}});
  CHECK(copy.refusal({kEmbedding}, llama(true)).empty());
  CHECK_FALSE(copy.refusal({kEmbedding}, llama(false)).empty());  // that model would have read it
  const Checkpoint differs({{kEmbedding}, {"lm_head.weight", other}});
  CHECK(differs.refusal({kEmbedding}, llama(true)) ==
        "tensor lm_head.weight differs from model.embed_tokens.weight, but tie_word_embeddings of config.json is true:"
        " one weight for both\n  expected no lm_head.weight, or a copy; set tie_word_embeddings to false, or remove the"
        " tensor");
  CHECK_FALSE(Checkpoint({{kEmbedding}, {"lm_head.weight", std::string(8, 'x'), "I32"}})
                  .refusal({kEmbedding}, llama(true))
                  .empty());
  CHECK_FALSE(Checkpoint({{kEmbedding}, {"lm_head.weight", std::string(8, 'x'), "F32", "[1,2]"}})
                  .refusal({kEmbedding}, llama(true))
                  .empty());
  for (const char* name : {"transformer.wte.weight", "wte.weight"}) {
    CHECK(Checkpoint({{name}, {"lm_head.weight"}}).refusal({name}, gpt()).empty());
    CHECK_FALSE(Checkpoint({{name}, {"lm_head.weight", other}}).refusal({name}, gpt()).empty());
    CHECK_FALSE(Checkpoint({{name}, {"lm_head.weight"}}).refusal({name}, gpt(false)).empty());
  }
}

}  // namespace sfsdp::train::hf_unread_test

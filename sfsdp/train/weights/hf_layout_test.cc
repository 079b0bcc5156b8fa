// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_layout.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/train/weights/hf_folder.h"

namespace sfsdp::train::hf_layout_test {
namespace {

// The parameters of a Llama 3 by shape alone, in our model's order.
std::vector<HfSource> llama_sources(int64_t dim, int64_t ffn, int64_t layers, int64_t heads, int64_t kv_heads,
                                    int64_t vocabulary) {
  const int64_t kv = dim / heads * kv_heads;
  std::vector<HfSource> sources = {{"tok_embeddings.weight", {vocabulary, dim}}};
  for (int64_t i = 0; i < layers; ++i) {
    const std::string at = concat("layers.", i, ".");
    sources.push_back({at + "attention.wq.weight", {dim, dim}});
    sources.push_back({at + "attention.wk.weight", {kv, dim}});
    sources.push_back({at + "attention.wv.weight", {kv, dim}});
    sources.push_back({at + "attention.wo.weight", {dim, dim}});
    sources.push_back({at + "feed_forward.w1.weight", {ffn, dim}});
    sources.push_back({at + "feed_forward.w2.weight", {dim, ffn}});
    sources.push_back({at + "feed_forward.w3.weight", {ffn, dim}});
    sources.push_back({at + "attention_norm.weight", {dim}});
    sources.push_back({at + "ffn_norm.weight", {dim}});
  }
  sources.push_back({"norm.weight", {dim}});
  sources.push_back({"output.weight", {vocabulary, dim}});
  return sources;
}

HfConfig llama_config(int64_t layers, int64_t heads, int64_t kv_heads, bool tied) {
  HfConfig config;
  config.architecture = "LlamaForCausalLM";
  config.model = "llama3";
  config.args = {{"n_layers", layers}, {"n_heads", heads},  {"n_kv_heads", kv_heads},
                 {"tied", tied},       {"qkv_bias", false}, {"qk_norm", false}};
  return config;
}

std::vector<uint64_t> tensor_bytes_by_file(const HfLayout& layout) {
  std::vector<uint64_t> bytes(layout.files.size());
  for (const HfPlaced& t : layout.tensors) bytes[t.file] += t.bytes;
  return bytes;
}

}  // namespace

// Expected: huggingface_hub's split_torch_state_dict_into_shards on meta tensors of transformers' LlamaForCausalLM.
TEST_CASE("hf_layout: Llama 3 8B and 70B are split as huggingface_hub splits them") {
  const HfLayout small =
      lay_out_hf(llama_sources(4096, 14336, 32, 32, 8, 128256), llama_config(32, 32, 8, false), ir::DType::bf16);
  CHECK(small.tensor_bytes == 16060522496);
  CHECK(tensor_bytes_by_file(small) == std::vector<uint64_t>{4976689152, 4999790592, 4915904512, 1168138240});
  const HfLayout large =
      lay_out_hf(llama_sources(8192, 28672, 80, 64, 8, 128256), llama_config(80, 64, 8, false), ir::DType::bf16);
  CHECK(large.tensor_bytes == 141107412992);
  REQUIRE(large.files.size() == 30);
  CHECK(large.files[0].name == "model-00001-of-00030.safetensors");
  CHECK(large.files[29].name == "model-00030-of-00030.safetensors");
  const std::vector<uint64_t> bytes = tensor_bytes_by_file(large);
  CHECK(std::vector<uint64_t>(bytes.begin(), bytes.begin() + 5) ==
        std::vector<uint64_t>{4584407040, 4664164352, 4999708672, 4966154240, 4664131584});
  CHECK(bytes[28] == 4966170624);
  CHECK(bytes[29] == 2101346304);
}

// 2 GiB is what an export of 70B may take beyond the shards; this is all that grows with the model.
TEST_CASE("hf_layout: an export of 70B takes less than 16 MiB of a rank beyond its shards") {
  const HfLayout layout =
      lay_out_hf(llama_sources(8192, 28672, 80, 64, 8, 128256), llama_config(80, 64, 8, false), ir::DType::bf16);
  size_t text = layout.index.size();
  for (const HfFile& file : layout.files) text += file.header.size() + file.name.size();
  for (const HfPlaced& t : layout.tensors)
    text += sizeof t + t.tensor.hf_name.size() + t.tensor.other_name.size() + t.source.name.size() +
            8 * (t.shape.size() + t.source.shape.size());
  CHECK(layout.largest_tensor() > kHfStagingBytes);  // so the staging is of its full size
  CHECK(kHfStagingBytes + text < size_t{16} << 20);
}

TEST_CASE("hf_layout: tensors lie packed after a header of a multiple of 8 bytes, a tied one once") {
  auto sources = llama_sources(8, 12, 2, 2, 1, 10);
  const HfLayout tied = lay_out_hf(sources, llama_config(2, 2, 1, true), ir::DType::f32);
  CHECK(tied.tensors.size() == sources.size() - 1);
  CHECK_FALSE(tied.find("output.weight"));
  CHECK(tied.index.empty());
  REQUIRE(tied.files.size() == 1);
  CHECK(tied.files[0].name == "model.safetensors");
  const HfLayout layout = lay_out_hf(sources, llama_config(2, 2, 1, false), ir::DType::f16, 500);
  CHECK(layout.files.size() > 2);
  std::vector<uint64_t> at;
  for (const HfFile& file : layout.files) {
    CHECK(file.header.size() % 8 == 0);
    at.push_back(file.header.size());
  }
  for (const HfPlaced& t : layout.tensors) {
    CHECK(t.begin == at[t.file]);
    at[t.file] += t.bytes;
  }
  for (size_t i = 0; i < at.size(); ++i) CHECK(layout.files[i].bytes == at[i]);
  CHECK_THROWS_WITH_AS(lay_out_hf({{"layers.0.attention.wq.bias", {8}}}, llama_config(2, 2, 1, false), ir::DType::f32),
                       doctest::Contains("layers.0.attention.wq.bias has no place in a checkpoint of LlamaForCausalLM"),
                       UserError);
  CHECK_THROWS_WITH_AS(lay_out_hf(sources, llama_config(2, 2, 1, false), ir::DType::f64),
                       doctest::Contains("export_dtype is f64"), UserError);
}

}  // namespace sfsdp::train::hf_layout_test

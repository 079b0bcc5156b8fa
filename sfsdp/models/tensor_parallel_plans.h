// SPDX-License-Identifier: BSD-3-Clause
// Which dimension of which weights tensor parallelism cuts, by model: rows where a product makes more of a token, columns where
// the next one adds that up, so that a block has one sum for attention and one for the feed-forward; and the vocabulary.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sfsdp::models {

// Whether a model of the Llama family has experts. A rule must name a parameter, so the plans differ.
enum class Experts : uint8_t { None, Some };

// The experts of a flavor of llama3, without what single arguments change.
inline Experts experts_of_flavor(std::string_view flavor) {
  constexpr std::array<std::string_view, 6> kMixtures = {"debugmodel_moe",     "30B-A3B", "235B-A22B",
                                                         "debugmodel_mixtral", "8x7B",    "8x22B"};
  return std::ranges::find(kMixtures, flavor) == kMixtures.end() ? Experts::None : Experts::Some;
}

// As parallelism.tensor_parallel_plan has it, pattern=dimension; empty for a model that has no plan. The Llama family has also
// the models that are built of its parts, such as Qwen3. GPT's attention is whole, as one matrix makes q, k and v, and so is
// its vocabulary, as GPT-2's is odd.
//   experts: of a llama3; other models have theirs or none
inline std::vector<std::string> tensor_parallel_plan(std::string_view model, Experts experts = Experts::None) {
  if (model == "llama3" && experts == Experts::Some)
    return {"*.experts.w1|w3=1", "*.experts.w2=2", "*.wq|wk|wv|w1|w3=0", "*.wo|w2=1", "tok_embeddings|output=0"};
  if (model == "llama3") return {"*.wq|wk|wv|w1|w3=0", "*.wo|w2=1", "tok_embeddings|output=0"};
  if (model == "deepseek_v3")  // every expert's width, so that all ranks route and sort alike; latents are whole
    return {"*.wq|wq_b|wkv_b=0", "*.wo=1", "*.experts.w1|w3=1",      "*.experts.w2=2",
            "*.w1|w3=0",         "*.w2=1", "tok_embeddings|output=0"};
  if (model == "gpt") return {"*.mlp.c_fc=0", "*.mlp.c_proj=1"};
  return {};
}

}  // namespace sfsdp::models

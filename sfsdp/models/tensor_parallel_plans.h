// SPDX-License-Identifier: BSD-3-Clause
// Which dimension of which weights tensor parallelism cuts, by model: rows where a product makes more of a token, columns where
// the next one adds that up, so that a block has one sum for attention and one for the feed-forward; and the vocabulary.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sfsdp::models {

// As parallelism.tensor_parallel_plan has it, pattern=dimension, or pattern=dimension:blocks of a matrix that makes several; empty
// for a model that has no plan. The Llama family has also the models that are built of its parts, such as Qwen3, with experts in some
// layers or without: a rule of a plan may name nothing. GPT's table is its head too.
inline std::vector<std::string> tensor_parallel_plan(std::string_view model) {
  if (model == "llama3")
    return {"*.experts.w1|w3=1", "*.experts.w2=2", "*.wq|wk|wv|w1|w3=0", "*.wo|w2=1", "tok_embeddings|output=0"};
  if (model == "deepseek_v3")  // every expert's width, so that all ranks route and sort alike; latents are whole
    return {"*.wq|wq_b|wkv_b=0", "*.wo=1", "*.experts.w1|w3=1",      "*.experts.w2=2",
            "*.w1|w3=0",         "*.w2=1", "tok_embeddings|output=0"};
  if (model == "gpt") return {"*.attn.c_attn=0:3", "*.mlp.c_fc=0", "*.c_proj=1", "wte=0"};
  return {};
}

}  // namespace sfsdp::models

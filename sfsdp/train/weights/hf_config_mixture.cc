// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/train/weights/hf_config_parts.h"

namespace sfsdp::train {
namespace {

// The first layers that have no mixture by mlp_only_layers: our model has no other list of them.
int64_t first_dense_layers(const Section& top, int64_t layers) {
  const JsonValue* list = top.find("mlp_only_layers");
  if (!list) return 0;
  const auto* numbers = list->as<JsonArray>();
  if (!numbers) top.refuse("mlp_only_layers", describe(*list), "a list of numbers of layers");
  std::vector<uint64_t> found;
  for (const JsonValue& number : *numbers) {
    const auto* layer = number.as<uint64_t>();
    if (!layer || *layer >= static_cast<uint64_t>(layers))
      top.refuse("mlp_only_layers", "[.. " + describe(number) + " ..]",
                 concat("numbers below num_hidden_layers = ", layers));
    found.push_back(*layer);
  }
  std::ranges::sort(found);
  for (size_t i = 0; i < found.size(); ++i)
    if (found[i] != i)
      top.refuse("mlp_only_layers", concat("[.. ", found[i], " ..], without ", i),
                 "the first layers alone, [0, 1, ..]; no other is supported");
  return static_cast<int64_t>(found.size());
}

// transformers 4 and 5 have one name each, and read both.
int64_t experts_of(const Section& top, const char* name, const char* other) {
  const auto given = top.find_integer(name), also = top.find_integer(other);
  if (given && also && *given != *also) top.refuse(other, concat(*also), concat("the same as ", name, " = ", *given));
  return given ? *given : also ? *also : top.integer(name);
}

}  // namespace

void read_llama_mixture(const Section& top, Experts experts, HfConfig& config) {
  auto& args = config.args;
  args["num_experts"] = int64_t{0};
  if (experts == Experts::None) return;
  const bool qwen = experts == Experts::Qwen3;
  const int64_t count =
      qwen ? experts_of(top, "num_experts", "num_local_experts") : experts_of(top, "num_local_experts", "num_experts");
  const int64_t chosen = top.integer("num_experts_per_tok");
  if (chosen > count) top.refuse("num_experts_per_tok", concat(chosen), concat("at most the ", count, " experts"));
  args["num_experts"] = count;
  args["top_k"] = chosen;
  args["moe_inter_dim"] = top.integer(qwen ? "moe_intermediate_size" : "intermediate_size");
  args["route_norm"] = qwen ? top.flag("norm_topk_prob", false) : true;
  args["n_dense_layers"] = qwen ? first_dense_layers(top, config.integer("n_layers")) : 0;
  args["moe_layer_step"] = qwen ? top.find_integer("decoder_sparse_step").value_or(1) : 1;
  if (!qwen) top.must_be_number("router_jitter_noise", 0);
  if (top.flag("output_router_logits", false))
    config.notices.push_back(concat(top.file(),
                                    ": output_router_logits = true is not applied: no loss is added for"
                                    " experts that are chosen unevenly"));
}

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_unread.h"

#include <algorithm>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/weights/hf_names.h"

namespace sfsdp::train {
namespace {

constexpr const char* kOutput = "lm_head.weight";

// A tensor of a module that predicts further tokens, as V3 has them: transformers leaves these out as well.
bool is_after_last_layer(const std::string& name, const HfConfig& config) {
  constexpr std::string_view kLayers = "model.layers.";
  if (config.architecture != "DeepseekV3ForCausalLM" || !name.starts_with(kLayers)) return false;
  const size_t end = name.find('.', kLayers.size());
  const auto layer = parse_int(std::string_view(name).substr(kLayers.size(), end - kLayers.size()));
  return end != std::string::npos && layer && *layer >= config.integer("n_layers");
}

bool is_saved_constant(const std::string& name, const HfConfig& config) {
  if (is_after_last_layer(name, config)) return true;
  if (config.model == "gpt") return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  return name.ends_with(".rotary_emb.inv_freq");
}

bool are_equal(const TensorView& a, const TensorView& b) {
  if (a.dtype_name != b.dtype_name || a.shape != b.shape) return false;
  constexpr uint64_t kPiece = 1 << 20;
  std::vector<std::byte> one, other;
  for (uint64_t at = 0; at < a.bytes; at += kPiece) {
    one.resize(static_cast<size_t>(std::min(kPiece, a.bytes - at)));
    other.resize(one.size());
    a.read(at, one);
    b.read(at, other);
    if (one != other) return false;
  }
  return true;
}

// Throws unless `output` is a copy of the embedding, which our model has alone.
void expect_copy_of_embedding(const SafetensorsCheckpoint& checkpoint, const TensorView& output,
                              const HfConfig& config) {
  const HfTensor place =
      *hf_tensor_of(config.model, config.model == "gpt" ? "wte.weight" : "tok_embeddings.weight", config);
  const TensorView* embedding = checkpoint.find(place.hf_name);
  if (!embedding) embedding = &checkpoint.at(place.other_name);
  if (are_equal(output, *embedding)) return;
  throw UserError(concat(checkpoint.file_of(kOutput), ": tensor ", kOutput, " differs from ", embedding->name,
                         ", but tie_word_embeddings of config.json is true",
                         config.model == "gpt" ? ", its default" : "", ": one weight for both\n  expected no ", kOutput,
                         ", or a copy; set tie_word_embeddings to false, or remove the tensor"));
}

}  // namespace

void expect_all_read(const SafetensorsCheckpoint& checkpoint, const std::set<std::string>& read,
                     const HfConfig& config) {
  constexpr size_t kNamed = 8;
  const bool tied = config.model != "deepseek_v3" && config.flag("tied");
  std::vector<std::string> others;
  for (const std::string& name : checkpoint.names()) {
    if (read.contains(name) || is_saved_constant(name, config)) continue;
    if (tied && name == kOutput)
      expect_copy_of_embedding(checkpoint, checkpoint.at(name), config);
    else
      others.push_back(quote_safe(name));
  }
  if (others.empty()) return;
  const size_t count = others.size();
  others.resize(std::min(count, kNamed));
  throw UserError(concat(
      checkpoint.dir(), ": ", count, count == 1 ? " tensor" : " tensors", " that the model of config.json has not: ",
      join(others, ", "), count > kNamed ? concat(" and ", count - kNamed, " more") : "",
      "\n  expected the tensors of this model alone, as it would train without these; mend config.json"
      " (layers, biases, norms), or remove them from the files"));
}

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/Tensor.h>
#include <torch/nn/modules/embedding.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/freeze.h"
#include "sfsdp/capture/lora.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/train/trained_parameters_torch.h"
#include "sfsdp/train/weights/adapter_names.h"
#include "sfsdp/train/weights/hf_config_json.h"
#include "sfsdp/train/weights/peft_import.h"

namespace sfsdp::train {

namespace {

// What says the names of our modules in Python; null: they have the same there.
std::optional<HfConfig> names_in_python(const torch::nn::Module& module, const CompiledJob& job) {
  if (job.model_name == "exported") return std::nullopt;
  if (job.hf_config) return job.hf_config;
  std::vector<HfSource> parameters;
  for (const auto& p : module.named_parameters()) parameters.push_back({p.key(), p.value().sizes().vec()});
  return hf_config_of_model(job.model_name, job.model.args, parameters);
}

// lora.rank and lora.alpha may be given beside an adapter, as it has them.
template <class Number>
void expect_agreement(const char* key, const std::optional<Number>& given, Number has, const char* there,
                      const std::string& folder) {
  if (given && *given != has)
    throw UserError(concat("lora.", key, " = ", *given, ", but ", folder, "/adapter_config.json has ", there, " = ",
                           has, "\n  expected the same; leave lora.", key, " out"));
}

LoraOptions options_of_adapter(const torch::nn::Module& module, const Lora& lora, CompiledJob& job) {
  const auto adapter = std::make_shared<PeftAdapter>(lora.adapter);
  const PeftConfig& has = adapter->config();
  expect_agreement("rank", lora.rank, has.rank, "r", lora.adapter);
  expect_agreement("alpha", lora.alpha, has.alpha, "lora_alpha", lora.adapter);
  std::vector<std::string> matrices;
  for (const auto& p : module.named_parameters())
    if (constexpr std::string_view kWeight = ".weight"; p.value().dim() == 2 && p.key().ends_with(kWeight))
      matrices.push_back(p.key().substr(0, p.key().size() - kWeight.size()));
  const std::optional<HfConfig> names = names_in_python(module, job);
  job.adapter = adapter;
  job.notices.insert(job.notices.end(), has.notices.begin(), has.notices.end());
  return {adapter->match(matrices, names ? &*names : nullptr), has.rank, has.alpha};
}

}  // namespace

void choose_trained(torch::nn::Module& module, const JobConfig& config, CompiledJob& job) {
  freeze(module, config.model.frozen);
  const Lora& lora = config.lora;
  if (lora.target.empty() && lora.adapter.empty()) return;
  for (const auto& p : module.named_parameters())
    if (is_adapter(p.key()))
      throw UserError(
          concat("[lora]: the model has ", p.key(), " of its own",
                 "\n  expected a model without adapters; its own are trained without [lora], the rest left as it is"
                 " by model.frozen"));
  LoraOptions options;
  if (!lora.adapter.empty())
    options = options_of_adapter(module, lora, job);
  else {
    options.rank = lora.rank.value_or(options.rank);
    options.alpha = lora.alpha.value_or(options.alpha);
    for (const std::string& patterns : lora.target)
      for (const std::string& pattern : split(patterns, '|')) options.targets.push_back(pattern);
  }
  add_lora(module, options);
  job.lora_alpha = options.alpha;
}

std::string load_adapter(const PeftAdapter& adapter, Step& step) {
  const auto state = step.state_dict();
  for (const StoredTensor& t : step.program().tensors()) {
    if (t.source < 0 || !is_adapter(t.name)) continue;
    const at::Tensor& mine = state.at(t.name);
    adapter.read(t.name, t.global_shape, step.box_of(t.name),
                 {static_cast<std::byte*>(mine.mutable_data_ptr()), static_cast<size_t>(mine.nbytes())},
                 capture::dtype_of(mine.scalar_type()));
  }
  step.load_state_dict({});  // whole copies are gathered anew from what was written
  return concat("Adapters of ", adapter.folder(), ": of ", adapter.size(), " modules, rank ", adapter.config().rank,
                ", alpha ", shortest(adapter.config().alpha));
}

MatrixElements matrix_elements(const torch::nn::Module& module) {
  MatrixElements elements;
  for (const auto& part : module.named_modules()) {
    if (dynamic_cast<const torch::nn::EmbeddingImpl*>(part.value().get())) continue;  // looked up, not multiplied
    const std::string& path = part.key();
    const bool adapter = path.ends_with(".lora_A") || path.ends_with(".lora_B");
    for (const at::Tensor& p : part.value()->parameters(/*recurse=*/false)) {
      if (p.dim() < 2) continue;
      const auto count = static_cast<double>(p.numel());
      (p.requires_grad() ? elements.trained : elements.frozen) += count;
      if (adapter) elements.adapters += count;
    }
  }
  return elements;
}

}  // namespace sfsdp::train

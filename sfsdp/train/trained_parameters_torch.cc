// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/Tensor.h>
#include <torch/nn/modules/embedding.h>

#include <string>
#include <vector>

#include "sfsdp/base/strings.h"
#include "sfsdp/capture/freeze.h"
#include "sfsdp/capture/lora.h"
#include "sfsdp/train/trained_parameters_torch.h"

namespace sfsdp::train {

void choose_trained(torch::nn::Module& module, const JobConfig& config) {
  freeze(module, config.model.frozen);
  if (config.lora.target.empty()) return;
  LoraOptions options{{}, config.lora.rank, config.lora.alpha};
  for (const std::string& patterns : config.lora.target)
    for (const std::string& pattern : split(patterns, '|')) options.targets.push_back(pattern);
  add_lora(module, options);
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

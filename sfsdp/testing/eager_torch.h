// SPDX-License-Identifier: BSD-3-Clause
// Plain eager LibTorch training with this project's conventions: what captured steps are compared with.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sfsdp/step/step.h"

namespace sfsdp::testing {

class EagerTrainer {
 public:
  EagerTrainer(std::shared_ptr<torch::nn::Module> module, AdamW optimizer, double max_norm);

  StepResult step(const std::function<at::Tensor()>& loss);
  // Parameters and buffers by name (tied ones under the first), moments as "<param>.exp_avg".
  std::map<std::string, at::Tensor> state() const;
  // Gradients of the last step before clipping.
  std::map<std::string, at::Tensor> gradients;

 private:
  std::shared_ptr<torch::nn::Module> module_;
  AdamW optimizer_;
  double max_norm_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::map<std::string, at::Tensor> moments_;
  at::Tensor count_;
};

}  // namespace sfsdp::testing

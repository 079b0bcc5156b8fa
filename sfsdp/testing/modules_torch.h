// SPDX-License-Identifier: BSD-3-Clause
// Every class of torch/nn/modules/ with default options and inputs that it takes, for tests that capture them all.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sfsdp/capture/capture_step.h"

namespace sfsdp::testing {

struct BuiltModule {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const std::vector<at::Tensor>& inputs)> loss;
};

struct ModuleRow {
  std::string name;
  std::function<BuiltModule()> build;
  std::vector<at::Tensor> inputs;
  double tolerance = 0;  // relative to the largest element; 0: bit for bit
  ModuleRow within(double relative) && {
    tolerance = relative;
    return std::move(*this);
  }
};

// In the order of docs/modules.md. The same modules and inputs for every call.
std::vector<ModuleRow> module_rows();

// A module under test. Inputs that require gradients are its parameters, so that their gradients are compared too.
struct HarnessImpl : torch::nn::Module {
  HarnessImpl(const std::shared_ptr<torch::nn::Module>& module, const std::vector<at::Tensor>& examples);
  std::vector<at::Tensor> inputs;
};

std::shared_ptr<HarnessImpl> build(const ModuleRow& row,
                                   std::function<at::Tensor(const std::vector<at::Tensor>&)>& loss);

// The captured step of a row, and what to run it with. Throws UserError for what is refused.
struct CapturedModule {
  capture::CapturedStep step;
  std::vector<capture::StateTensor> state;
  capture::Batch batch;
};
CapturedModule capture_module(const ModuleRow& row);

}  // namespace sfsdp::testing

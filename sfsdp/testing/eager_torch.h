// SPDX-License-Identifier: BSD-3-Clause
// Plain eager LibTorch training with this project's conventions, and captured training on several ranks: what is
// compared with what.
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
  // What a parameter is updated with; unset: the optimizer's numbers for all.
  std::function<AdamW(const std::string& name)> numbers_of;
  // The decay is decoupled, as AdamW's is; false: Adam's, a part of the gradient.
  bool decoupled = true;
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

double sum_of_squares(const at::Tensor& t);

// Gives the parameters of a real module the step's values. Collective.
void copy_weights(Step& step, torch::nn::Module& eager);

// Every parameter and moment of the step, whole, by name. Collective.
std::map<std::string, at::Tensor> gather_all(Step& step);

// What rank 0 saw of some steps on all ranks of the program's mesh.
struct Trained {
  std::vector<StepResult> results;
  std::map<std::string, at::Tensor> state;  // at the end
};
// Losses, norms and state, bit for bit.
void expect_same_bits(const Trained& got, const Trained& expected);

//   batches: of a step and a rank, its micro-batches
//   prepare: called on each rank before the first step
Trained train_on_ranks(const std::shared_ptr<Program>& program, int64_t steps,
                       const std::function<std::vector<Batch>(int64_t step, int64_t rank)>& batches,
                       const std::function<void(Step&, int rank)>& prepare = {});

}  // namespace sfsdp::testing

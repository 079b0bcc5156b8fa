// SPDX-License-Identifier: BSD-3-Clause
// Low-rank adapters (LoRA, arXiv 2106.09685) for the linear maps of any module: y = x·Wᵀ becomes y + alpha/rank · (x·Aᵀ)·Bᵀ. W is
// frozen: gathered, never reduced, without gradient and optimizer state. Initial values and names are those of PEFT's
// peft/tuners/lora/layer.py.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sfsdp {

struct LoraOptions {
  std::vector<std::string> targets;  // patterns of module paths: "*.wq"; * is any text, ? one character
  int64_t rank = 8;                  // rows of A, columns of B
  double alpha = 8;                  // adapters are multiplied by alpha / rank
};

// Gives each module that a target matches, and that has a matrix `weight` [out, in], the parameters lora_A.weight [rank, in],
// uniform below 1 / sqrt(in), and lora_B.weight [out, rank], zeros, in the weight's dtype; all other parameters are frozen.
// Returns the paths of those modules, in the module's order. The compiled step adds the adapters wherever torch::linear reads
// such a weight; a forward outside of it does not. Within meta_init the module keeps no memory.
//   throws: UserError for a target that matches no module with such a weight, or a module that has adapters already; a rank
//   or alpha that is not positive
std::vector<std::string> add_lora(torch::nn::Module& module, const LoraOptions& options);

namespace capture {

// For a parameter that got no gradient.
//   throws: UserError if it is of an adapter: no torch::linear has read the weight beside it
void expect_no_adapter(const at::Tensor& parameter);

}  // namespace capture
}  // namespace sfsdp

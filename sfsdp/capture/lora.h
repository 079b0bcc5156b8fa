// SPDX-License-Identifier: BSD-3-Clause
// Low-rank adapters (LoRA, arXiv 2106.09685) for the linear maps of any module: y = x·Wᵀ becomes y + alpha/rank · (x·Aᵀ)·Bᵀ. W is
// frozen: gathered, never reduced, without gradient and optimizer state. Initial values and names are those of PEFT's
// peft/tuners/lora/layer.py.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp {

struct LoraOptions {
  std::vector<std::string> targets;  // patterns of module paths: "*.wq"; * is any text, ? one character
  int64_t rank = 8;                  // rows of A, columns of B
  double alpha = 8;                  // adapters are multiplied by alpha / rank
};

// Gives each module that a target matches, and that has a matrix `weight` [out, in], the parameters lora_A.weight [rank, in],
// uniform below 1 / sqrt(in), and lora_B.weight [out, rank], zeros, in the weight's dtype; all other parameters are frozen.
// Returns the paths of those modules, in the module's order. The compiled step adds the adapters wherever torch::linear or
// torch::nn::Linear reads such a weight; a forward outside of it does not. Within meta_init the module keeps no memory.
//   throws: UserError for a target that matches no module with such a weight, or one whose weight is tied, or that has adapters
//   already; a rank or alpha that is not positive
std::vector<std::string> add_lora(torch::nn::Module& module, const LoraOptions& options);

namespace capture {

// What has read weights with adapters in a trace. One trace at a time.
void forget_reads_of_adapted();
// A weight that something else reads too would be another function once the adapter is merged, or written for PEFT.
//   weights: of the module, and the values of the graph that they are
//   throws: UserError naming the module, and the op that reads its weight without an adapter, if there is one
void check_reads_of_adapted(const ir::Graph& graph, std::span<const std::pair<at::Tensor, const ir::Value*>> weights);

}  // namespace capture
}  // namespace sfsdp

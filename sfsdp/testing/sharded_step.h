// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sfsdp::testing {

struct Param {
  std::string name;
  int64_t rows = 0, columns = 0;
  double weight_decay = 0.125, lr_factor = 1;  // of its update
};

struct ShardedStep {
  bool bf16 = false;         // parameters are cast before they are gathered, gradients before they are reduced
  int64_t replicas = 1;      // of all shards; gradients are all-reduced over them
  bool reduce_once = false;  // by the last micro-batch
  int64_t tokens = 0;  // rows of what each parameter multiplies, a product in forward and two in backward; 0: none
  bool batch = false;  // gradients are scaled by a number that each micro-batch gives
};

// The text of a step as data parallelism and the optimizer leave it: each parameter is gathered in forward and again in
// backward, which goes through them in the same order; its gradient is reduced and clipped, the parameter updated.
//   world: ranks that share the parameters
std::string sharded_step_text(int64_t world, const std::vector<Param>& params, const ShardedStep& step = {});

}  // namespace sfsdp::testing

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sfsdp::testing {

struct Param {
  std::string name;
  int64_t rows = 0, columns = 0;
};

// The text of a step as data parallelism and the optimizer leave it: each parameter is gathered in forward and again in
// backward, which goes through them in the same order; its gradient is reduced and clipped, the parameter updated.
//   bf16: parameters are cast before they are gathered, gradients cast before they are reduced
std::string sharded_step_text(int64_t world, const std::vector<Param>& params, bool bf16 = false);

}  // namespace sfsdp::testing

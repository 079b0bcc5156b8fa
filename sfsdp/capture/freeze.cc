// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/capture/freeze.h"

#include <ATen/core/Tensor.h>

#include <vector>

#include "sfsdp/optim/param_groups.h"

namespace sfsdp {

void freeze(torch::nn::Module& module, std::span<const std::string> patterns) {
  const auto parameters = module.named_parameters();
  std::vector<std::string> paths;
  for (const auto& p : parameters) paths.push_back(p.key());
  for (const std::string& pattern : patterns) {
    expect_match("freeze: pattern", pattern, paths);
    for (const auto& p : parameters)
      if (matches(pattern, p.key())) p.value().set_requires_grad(false);
  }
}

}  // namespace sfsdp

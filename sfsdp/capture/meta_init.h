// SPDX-License-Identifier: BSD-3-Clause
// Builds a module without allocating its weights, and remembers how they are to be initialised.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace torch::nn {
class Module;
}

namespace sfsdp::capture {

// The fills and arithmetic that a module's constructor ran, as one graph. Shared by the module's tensors.
struct InitProgram {
  ir::Graph graph;
  std::vector<at::Tensor> constants;
};

// The part of an InitProgram that makes one tensor: null program for a tensor that was not made by meta_init.
struct InitRecipe {
  std::shared_ptr<const InitProgram> program;
  const ir::Value* value = nullptr;
};

// The recipe that meta_init left on a meta tensor.
InitRecipe init_recipe(const at::Tensor& meta);

// Runs `build` with factory calls sent to meta and recorded; leaves a recipe on each parameter and buffer.
void run_meta_init(const std::function<std::shared_ptr<torch::nn::Module>()>& build);

}  // namespace sfsdp::capture

namespace sfsdp {

// auto model = meta_init([&] { return Llama3(args); }); any size of model, no memory. `build` returns a module holder
// or a shared_ptr to a module.
template <class Build>
auto meta_init(Build build) {
  using Holder = decltype(build());
  std::unique_ptr<Holder> result;
  capture::run_meta_init([&]() -> std::shared_ptr<torch::nn::Module> {
    result = std::make_unique<Holder>(build());
    if constexpr (requires { result->ptr(); })
      return result->ptr();
    else
      return *result;
  });
  return std::move(*result);
}

}  // namespace sfsdp

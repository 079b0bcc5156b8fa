// SPDX-License-Identifier: BSD-3-Clause
// What lists of modules under test are written with. In several files, as each row takes the compiler a third of a second.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sfsdp/testing/modules_torch.h"

namespace sfsdp::testing {

namespace nn = torch::nn;
using at::Tensor;
using Tensors = std::vector<Tensor>;

std::vector<ModuleRow> activations();
std::vector<ModuleRow> layers();
std::vector<ModuleRow> images();
std::vector<ModuleRow> pools();
std::vector<ModuleRow> sequences();
std::vector<ModuleRow> losses();

// Whatever a forward returns, as one number.
inline Tensor loss_of(const Tensor& out) { return out.is_floating_point() ? out.square().mean() : Tensor(); }
inline Tensor loss_of(const nn::ASMoutput& out) { return loss_of(out.output) + out.loss; }
template <class... Outs>
Tensor loss_of(const std::tuple<Outs...>& outs) {
  Tensor sum;
  const auto add = [&](const Tensor& loss) {
    if (loss.defined()) sum = sum.defined() ? sum + loss : loss;
  };
  std::apply([&](const auto&... out) { (add(loss_of(out)), ...); }, outs);
  return sum;
}

template <class Make, class... Inputs>
ModuleRow row(const std::string& name, Make make, Inputs... inputs) {
  const auto build = [make]() -> BuiltModule {
    const auto module = make().ptr();
    const auto call = [module]<size_t... I>(const Tensors& x, std::index_sequence<I...>) {
      return loss_of(module->forward(x[I]...));
    };
    return {module, [call](const Tensors& x) { return call(x, std::index_sequence_for<Inputs...>()); }};
  };
  return {name, build, {inputs...}};
}
template <class Holder>
Holder make() {
  return Holder();
}

inline Tensor x(at::IntArrayRef sizes) { return at::randn(sizes).set_requires_grad(true); }
inline Tensor positive(at::IntArrayRef sizes) { return at::rand(sizes).set_requires_grad(true); }
inline Tensor fixed(at::IntArrayRef sizes) { return at::randn(sizes); }
inline Tensor below(int64_t end, at::IntArrayRef sizes) { return at::randint(end, sizes, at::kLong); }
inline Tensor signs(at::IntArrayRef sizes) { return at::randint(2, sizes, at::kFloat) * 2 - 1; }

}  // namespace sfsdp::testing

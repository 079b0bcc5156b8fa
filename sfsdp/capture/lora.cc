// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/capture/lora.h"

#include <ATen/ATen.h>
#include <ATen/ops/linear_native.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/module_scope.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/optim/param_groups.h"

namespace sfsdp {
namespace {

struct Adapter {
  c10::weak_intrusive_ptr<c10::TensorImpl> weight;  // so that no other tensor comes to lie at its address
  at::Tensor a, b;
  double scale = 1;
  std::string path;
};

// By the weight's identity, which is all that torch::linear is given. Steps are compiled on any thread.
class Adapters {
 public:
  static Adapters& all() {
    static Adapters adapters;
    return adapters;
  }

  void add(const at::Tensor& weight, Adapter adapter) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(by_weight_, [](const auto& entry) { return entry.second.weight.expired(); });
    by_weight_.insert_or_assign(weight.unsafeGetTensorImpl(), std::move(adapter));
  }

  std::optional<Adapter> find(const at::Tensor& weight) {
    const std::scoped_lock lock(mutex_);
    const auto found = by_weight_.find(weight.unsafeGetTensorImpl());
    return found == by_weight_.end() ? std::nullopt : std::optional(found->second);
  }

  // "": it is of none.
  std::string path_with(const at::Tensor& parameter) {
    const std::scoped_lock lock(mutex_);
    for (const auto& [weight, adapter] : by_weight_)
      if (parameter.is_same(adapter.a) || parameter.is_same(adapter.b)) return adapter.path;
    return "";
  }

 private:
  std::mutex mutex_;
  std::unordered_map<c10::TensorImpl*, Adapter> by_weight_;
};

// Above autograd, which then finds the adapters' gradients as those of any op.
at::Tensor linear_with_adapters(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const at::Tensor y = at::native::linear(x, weight, bias);
  const std::optional<Adapter> adapter = Adapters::all().find(weight);
  if (!adapter) return y;
  const ModuleScope scope(adapter->path);
  return y + at::native::linear(at::native::linear(x, adapter->a, {}), adapter->b, {}) * adapter->scale;
}

void register_kernel() {
  static torch::Library autograd(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__, __LINE__);
  static const bool registered = (autograd.impl("linear", &linear_with_adapters), true);
  (void)registered;
}

struct AdapterPart : torch::nn::Module {
  explicit AdapterPart(const at::Tensor& value) { weight = register_parameter("weight", value); }
  at::Tensor weight;
};

struct Target {
  std::string path;
  std::shared_ptr<torch::nn::Module> module;
  at::Tensor weight;
};

// Modules with a matrix that torch::linear could read. Embeddings have one too, but no target is meant for them.
std::vector<Target> targets_of(torch::nn::Module& module) {
  std::vector<Target> targets;
  for (const auto& child : module.named_modules("", /*include_self=*/false))
    for (const auto& p : child.value()->named_parameters(/*recurse=*/false))
      if (p.key() == "weight" && p.value().dim() == 2 && p.value().is_floating_point())
        targets.push_back({child.key(), child.value(), p.value()});
  return targets;
}

}  // namespace

std::vector<std::string> add_lora(torch::nn::Module& module, const LoraOptions& options) {
  if (options.rank < 1 || !(options.alpha > 0) || !std::isfinite(options.alpha))
    throw UserError(concat("LoraOptions::rank = ", options.rank, ", LoraOptions::alpha = ", options.alpha,
                           "\n  expected both above 0"));
  const std::vector<Target> candidates = targets_of(module);
  std::vector<std::string> paths, adapted;
  for (const Target& target : candidates) paths.push_back(target.path);
  if (options.targets.empty())
    throw UserError("LoraOptions::targets is empty\n  expected patterns of module paths, such as *.wq");
  for (const std::string& pattern : options.targets)
    expect_match("LoraOptions::targets", pattern, paths, "module with a weight of two dimensions");
  for (const auto& p : module.named_parameters()) p.value().set_requires_grad(false);
  register_kernel();
  for (const Target& target : candidates) {
    if (std::ranges::none_of(options.targets, [&](const std::string& p) { return matches(p, target.path); })) continue;
    for (const auto& child : target.module->named_children())
      if (child.key() == "lora_A" || child.key() == "lora_B")
        throw UserError(concat(target.path, " has adapters already\n  expected add_lora once for a module"));
    const at::TensorOptions like = target.weight.options().requires_grad(false);
    const double bound = 1 / std::sqrt(static_cast<double>(target.weight.size(1)));
    const auto part = [&](const char* name, const at::Tensor& value) {
      return target.module->register_module(name, std::make_shared<AdapterPart>(value))->weight;
    };
    Adapter adapter{c10::weak_intrusive_ptr<c10::TensorImpl>(target.weight.getIntrusivePtr()),
                    {},
                    {},
                    options.alpha / static_cast<double>(options.rank),
                    target.path};
    adapter.a = part("lora_A", at::empty({options.rank, target.weight.size(1)}, like).uniform_(-bound, bound));
    adapter.b = part("lora_B", at::zeros({target.weight.size(0), options.rank}, like));
    Adapters::all().add(target.weight, std::move(adapter));
    adapted.push_back(target.path);
  }
  return adapted;
}

void capture::expect_no_adapter(const at::Tensor& parameter) {
  const std::string path = Adapters::all().path_with(parameter);
  if (path.empty()) return;
  throw UserError(concat("LoraOptions::targets matches ", path, ", but no torch::linear reads its weight",
                         "\n  expected modules whose forward is torch::linear(x, weight): an embedding, a matmul or a"
                         " weight that is cast or transposed first has no adapter"));
}

}  // namespace sfsdp

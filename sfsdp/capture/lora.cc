// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/capture/lora.h"

#include <ATen/ATen.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul_native.h>
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
  int64_t reads = 0;  // products with the weight that got the adapter, in this trace
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

  // The adapter of the weight that a product reads. A graph of Python says which module runs: the product of another one has no
  // adapter in PEFT.
  std::optional<Adapter> take(const at::Tensor& weight) {
    const std::scoped_lock lock(mutex_);
    const auto found = by_weight_.find(weight.unsafeGetTensorImpl());
    if (found == by_weight_.end()) return std::nullopt;
    if (const std::string* said = ModuleScope::current(); said && *said != found->second.path) return std::nullopt;
    ++found->second.reads;
    return found->second;
  }

  std::optional<Adapter> find(const at::Tensor& weight) {
    const std::scoped_lock lock(mutex_);
    const auto found = by_weight_.find(weight.unsafeGetTensorImpl());
    return found == by_weight_.end() ? std::nullopt : std::optional(found->second);
  }

  void forget_reads() {
    const std::scoped_lock lock(mutex_);
    for (auto& [weight, adapter] : by_weight_) adapter.reads = 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<c10::TensorImpl*, Adapter> by_weight_;
};

// torch::linear is made of a product itself, which must not get the adapter again.
thread_local bool within_linear = false;
class WithinLinear {
 public:
  WithinLinear() { within_linear = true; }
  ~WithinLinear() { within_linear = false; }
  WithinLinear(const WithinLinear&) = delete;
};

at::Tensor with_adapter(const at::Tensor& y, const at::Tensor& x, const Adapter& adapter) {
  const ModuleScope scope(adapter.path);
  return y + at::native::linear(at::native::linear(x, adapter.a, {}), adapter.b, {}) * adapter.scale;
}

// Above autograd, which then finds the adapters' gradients as those of any op.
at::Tensor linear_with_adapters(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const std::optional<Adapter> adapter = within_linear ? std::nullopt : Adapters::all().take(weight);
  if (!adapter) return at::native::linear(x, weight, bias);
  const WithinLinear within;
  return with_adapter(at::native::linear(x, weight, bias), x, *adapter);
}

bool is_transposed(const at::Tensor& view, const at::Tensor& of) {
  return view.dim() == 2 && of.dim() == 2 && view.size(0) == of.size(1) && view.size(1) == of.size(0) &&
         view.stride(0) == of.stride(1) && view.stride(1) == of.stride(0) &&
         view.storage_offset() == of.storage_offset();
}

// torch::nn::functional::linear multiplies by weight.t(), unless it has two dimensions and a bias.
at::Tensor matmul_with_adapters(const at::Tensor& x, const at::Tensor& other) {
  std::optional<Adapter> adapter;
  if (!within_linear && other.is_view())
    if (const at::Tensor base(other._base()); is_transposed(other, base)) adapter = Adapters::all().take(base);
  const at::Tensor y = at::native::matmul(x, other);
  return adapter ? with_adapter(y, x, *adapter) : y;
}

void register_kernel() {
  static torch::Library autograd(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__, __LINE__);
  static const bool registered =
      (autograd.impl("linear", &linear_with_adapters), autograd.impl("matmul", &matmul_with_adapters), true);
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

// Modules with a matrix that torch::linear could read. Embeddings have one too: check_reads_of_adapted refuses those.
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
  const auto parameters = module.named_parameters();
  for (const auto& p : parameters) p.value().set_requires_grad(false);
  register_kernel();
  for (const Target& target : candidates) {
    if (std::ranges::none_of(options.targets, [&](const std::string& p) { return matches(p, target.path); })) continue;
    for (const auto& child : target.module->named_children())
      if (child.key() == "lora_A" || child.key() == "lora_B")
        throw UserError(concat(target.path, " has adapters already\n  expected add_lora once for a module"));
    for (const auto& p : parameters)
      if (p.value().is_same(target.weight) && p.key() != target.path + ".weight")
        throw UserError(concat("LoraOptions::targets matches ", target.path, ", whose weight is tied to ", p.key(),
                               "\n  expected weights of their own: an adapter of one would be merged into both"));
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

void capture::forget_reads_of_adapted() { Adapters::all().forget_reads(); }

namespace {

// Products of forward with the value, straight or transposed; `other` is the first op that reads it otherwise.
int64_t products_with(const ir::Graph& graph, const ir::Value* value, const ir::Op*& other) {
  int64_t products = 0;
  for (const auto& op : graph.ops()) {
    if (op->section == ir::Section::Bwd || std::ranges::find(op->operands, value) == op->operands.end()) continue;
    if (op->is("aten.t"))
      products += products_with(graph, op->result(), other);
    else if (op->is("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"))
      ++products;
    else if (!other)
      other = op.get();
  }
  return products;
}

}  // namespace

void capture::check_reads_of_adapted(const ir::Graph& graph,
                                     std::span<const std::pair<at::Tensor, const ir::Value*>> weights) {
  for (const auto& [weight, value] : weights) {
    const std::optional<Adapter> adapter = Adapters::all().find(weight);
    if (!adapter) continue;
    const ir::Op* other = nullptr;
    const int64_t products = products_with(graph, value, other);
    if (other || products != adapter->reads || products == 0)
      throw UserError(concat(
          "LoraOptions::targets matches ", adapter->path, ", whose weight ",
          other       ? concat("is read by ", ir::opcode_at(*other))
          : !products ? "nothing reads"
                      : concat("is multiplied ", products, " times, ", adapter->reads, " of them by torch::linear"),
          "\n  expected a weight that torch::linear(x, weight) or torch::nn::Linear alone reads, such as no"
          " embedding's: merged, its adapter would change what else reads it"));
  }
}

}  // namespace sfsdp

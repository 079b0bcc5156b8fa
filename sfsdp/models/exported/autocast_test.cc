// SPDX-License-Identifier: BSD-3-Clause
// Casts, held against those that LibTorch makes on CPU tensors.
#include "sfsdp/models/exported/autocast.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::models {
namespace autocast_test {

using at::Tensor;

// LibTorch's own, as `with torch.autocast("cpu", dtype)` of Python has it.
class OwnAutocast {
 public:
  explicit OwnAutocast(c10::ScalarType dtype) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::set_autocast_cache_enabled(true);
    at::autocast::increment_nesting();
  }
  ~OwnAutocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  OwnAutocast(const OwnAutocast&) = delete;
  OwnAutocast& operator=(const OwnAutocast&) = delete;
};

Tensor numbers(at::IntArrayRef sizes, int64_t seed) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::rand(sizes, generator) + 0.25;
}

struct Case {
  const char* name;
  std::function<Tensor(const Tensor& x, const Tensor& w)> run;  // x: f32[4, 4], w: f32[4, 4], a parameter
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"mm", [](auto& x, auto& w) { return x.mm(w); }},
      {"linear", [](auto& x, auto& w) { return at::linear(x, w); }},
      {"einsum, which calls bmm",
       [](auto& x, auto& w) {
         return at::einsum("ij,jk->ik", {x, w});
       }},
      {"prelu", [](auto& x, auto& w) { return at::prelu(x - 0.5, w[0]); }},
      {"conv1d", [](auto& x, auto& w) { return at::conv1d(x.unsqueeze(0), w.unsqueeze(2)); }},
      {"attention",
       [](auto& x, auto& w) {
         const Tensor q = x.view({1, 1, 4, 4}), k = w.view({1, 1, 4, 4});
         return at::scaled_dot_product_attention(q, k, k);
       }},
      {"prod", [](auto& x, auto& w) { return x.to(at::kBFloat16).prod() * w; }},
      {"mse_loss", [](auto& x, auto& w) { return at::mse_loss(x.to(at::kBFloat16), w); }},
      {"cat",
       [](auto& x, auto& w) {
         return at::cat({x.mm(x), w});
       }},
      {"cat of lower ones",
       [](auto& x, auto& w) {
         return at::cat({x.mm(x), w.mm(w)});
       }},
      {"stack of float64 and a lower one",
       [](auto& x, auto& w) {
         return at::stack({x.to(at::kDouble), w.to(at::kDouble)});
       }},
      {"a product of float64 stays", [](auto& x, auto& w) { return x.to(at::kDouble).mm(w.to(at::kDouble)); }},
      {"integers stay", [](auto& x, auto& w) { return x.to(at::kLong).mm(x.to(at::kLong)) + w; }},
      {"pointwise ops and norms stay",
       [](auto& x, auto& w) { return at::layer_norm(x * w, {4}).softmax(-1) + at::sin(w); }},
      {"a parameter that is read twice is cast once", [](auto& x, auto& w) { return x.mm(w).mm(w).add(w.mm(x)); }},
      {"two layers", [](auto& x, auto& w) { return at::mse_loss(at::gelu(at::linear(x, w)).mm(w), x); }},
  };
  return all;
}

struct Result {
  Tensor value, gradient;
};

template <class Scope>
Result run(const Case& c, const std::function<std::unique_ptr<Scope>()>& scope) {
  const Tensor x = numbers({4, 4}, 1), w = numbers({4, 4}, 2).requires_grad_();
  Result result;
  {
    const auto on = scope();
    result.value = c.run(x, w);
  }
  result.value.sum().to(at::kDouble).backward();
  result.gradient = w.grad();
  return result;
}

TEST_CASE("autocast: the same bits and gradients as LibTorch's on a CPU") {
  for (const c10::ScalarType dtype : {at::kBFloat16, at::kHalf})
    for (const Case& c : cases()) {
      CAPTURE(std::string(c.name));
      CAPTURE(dtype);
      const Result expected = run<OwnAutocast>(c, [&] { return std::make_unique<OwnAutocast>(dtype); });
      const Result got = run<Autocast>(c, [&] { return std::make_unique<Autocast>(true, dtype); });
      CHECK((got.value.scalar_type() == expected.value.scalar_type()));
      CHECK(at::equal(got.value, expected.value));
      CHECK((got.gradient.scalar_type() == expected.gradient.scalar_type()));
      CHECK(at::equal(got.gradient, expected.gradient));
    }
}

TEST_CASE("autocast: on tensors without numbers, as where a step is captured") {
  const Tensor x = at::empty({4, 4}, at::TensorOptions(at::kMeta).dtype(at::kFloat));
  CHECK((x.mm(x).scalar_type() == at::kFloat));
  {
    const Autocast on(true, at::kBFloat16);
    CHECK((x.mm(x).scalar_type() == at::kBFloat16));
    {
      const Autocast off(false);
      CHECK((x.mm(x).scalar_type() == at::kFloat));
      const Autocast half(true, at::kHalf);
      const Autocast same(true);
      CHECK((x.mm(x).scalar_type() == at::kHalf));
    }
    CHECK((x.mm(x).scalar_type() == at::kBFloat16));
  }
  CHECK((x.mm(x).scalar_type() == at::kFloat));
}

// What a new LibTorch adds, or gives up, is looked up and put into the lists.
TEST_CASE("autocast: the lists have the ops that LibTorch casts on a CPU") {
  std::vector<std::string> missing, too_many;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !name.name.starts_with("aten::")) continue;
    const std::string text = name.overload_name.empty() ? name.name : concat(name.name, '.', name.overload_name);
    // No archive has names of dimensions: LibTorch before 2.13 casts there too.
    const bool by_name = name.overload_name.find("imname") != std::string::npos;
    const bool casts = !by_name && op->hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU);
    if (casts && !autocast_policy(text)) missing.push_back(text);
    if (!casts && autocast_policy(text)) too_many.push_back(text);
  }
  CHECK(join(missing, " ") == "");
  CHECK(join(too_many, " ") == "");
  CHECK_FALSE(autocast_policy("mm"));
}

}  // namespace autocast_test
}  // namespace sfsdp::models

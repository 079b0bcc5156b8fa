// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/eager_torch.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

#include "sfsdp/testing.h"

namespace sfsdp::testing {

EagerTrainer::EagerTrainer(std::shared_ptr<torch::nn::Module> module, AdamW optimizer, double max_norm)
    : module_(std::move(module)), optimizer_(optimizer), max_norm_(max_norm), count_(at::zeros({}, at::kFloat)) {
  std::set<c10::TensorImpl*> seen;
  for (const auto& p : module_->named_parameters()) {
    if (!seen.insert(p.value().unsafeGetTensorImpl()).second) continue;
    parameters_.emplace_back(p.key(), p.value());
  }
}

StepResult EagerTrainer::step(const std::function<at::Tensor()>& loss) {
  for (auto& [name, p] : parameters_) p.mutable_grad() = at::Tensor();
  at::Tensor value = loss();
  value.backward();
  at::NoGradGuard no_grad;
  gradients.clear();
  double sum = 0;
  for (auto& [name, p] : parameters_) {
    if (!p.grad().defined()) continue;
    gradients[name] = p.grad().clone();
    // In row-major order, in double, element i to sum i mod 32: the convention of the step's own norm.
    const at::Tensor g = p.grad().contiguous().to(at::kDouble);
    std::array<double, 32> squares = {};
    for (int64_t i = 0; i < g.numel(); ++i)
      squares[static_cast<size_t>(i % 32)] += g.const_data_ptr<double>()[i] * g.const_data_ptr<double>()[i];
    sum += std::accumulate(squares.begin(), squares.end(), 0.0);
  }
  const double norm = std::sqrt(sum);
  const double coefficient = max_norm_ > 0 ? std::min(1.0, max_norm_ / (norm + 1e-6)) : 1.0;
  count_.add_(1);
  for (auto& [name, p] : parameters_) {
    if (!p.grad().defined()) continue;
    at::Tensor& m = moments_[name + ".exp_avg"];
    at::Tensor& v = moments_[name + ".exp_avg_sq"];
    if (!m.defined()) {
      m = at::zeros_like(p);
      v = at::zeros_like(p);
    }
    const AdamW o = numbers_of ? numbers_of(name) : optimizer_;
    const at::Tensor clipped =
        p.grad() * at::scalar_tensor(coefficient, p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    const auto update = [&](const auto& fused) {
      fused(at::TensorList(p), at::TensorList(clipped), at::TensorList(m), at::TensorList(v), at::TensorList(),
            at::TensorList(count_), o.lr, o.beta1, o.beta2, o.weight_decay, o.eps);
    };
    if (decoupled)
      update([](auto... a) { at::_fused_adamw_(a..., /*amsgrad=*/false, /*maximize=*/false); });
    else
      update([](auto... a) { at::_fused_adam_(a..., /*amsgrad=*/false, /*maximize=*/false); });
  }
  return {value.item<double>(), norm, false};
}

std::map<std::string, at::Tensor> EagerTrainer::state() const {
  std::map<std::string, at::Tensor> values = moments_;
  for (const auto& [name, p] : parameters_) values[name] = p.detach();
  for (const auto& b : module_->named_buffers()) values[b.key()] = b.value();
  return values;
}

double sum_of_squares(const at::Tensor& t) { return t.to(at::kDouble).square().sum().item<double>(); }

void copy_weights(Step& step, torch::nn::Module& eager) {
  at::NoGradGuard no_grad;
  for (auto& p : eager.named_parameters()) p.value().copy_(step.gather(p.key()));
}

std::map<std::string, at::Tensor> gather_all(Step& step) {
  std::map<std::string, at::Tensor> values;
  for (const StoredTensor& t : step.program().tensors()) values[t.name] = step.gather(t.name);
  return values;
}

void expect_same_bits(const Trained& got, const Trained& expected) {
  REQUIRE(got.results.size() == expected.results.size());
  for (size_t k = 0; k < expected.results.size(); ++k) {
    CHECK(got.results[k].loss == expected.results[k].loss);
    CHECK(got.results[k].grad_norm == expected.results[k].grad_norm);
  }
  for (const auto& [name, value] : expected.state) {
    CAPTURE(name);
    CHECK(at::equal(got.state.at(name), value));
  }
}

Trained train_on_ranks(const std::shared_ptr<Program>& program, int64_t steps,
                       const std::function<std::vector<Batch>(int64_t step, int64_t rank)>& batches,
                       const std::function<void(Step&, int rank)>& prepare) {
  Trained trained;
  run_ranks(static_cast<int>(program->strategy().mesh.world_size()), [&](comm::CommWorld& world) {
    Step step(program, &world);
    if (prepare) prepare(step, world.rank());
    for (int64_t k = 0; k < steps; ++k) {
      const StepResult result = step(batches(k, world.rank()));
      if (world.rank() == 0) trained.results.push_back(result);
    }
    auto state = gather_all(step);
    if (world.rank() == 0) trained.state = std::move(state);
  });
  return trained;
}

}  // namespace sfsdp::testing

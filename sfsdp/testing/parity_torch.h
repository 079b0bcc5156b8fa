// SPDX-License-Identifier: BSD-3-Clause
// Training on ranks that are threads, with weights that model axes cut, against one eager process on the same global batch.
#pragma once

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sfsdp/comm/thread/run_ranks.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/eager_torch.h"

namespace sfsdp::testing {

inline constexpr AdamW kParityOptimizer{.lr = 2e-3, .weight_decay = 0.1};

struct Reference {
  std::vector<StepResult> results;
  std::map<std::string, at::Tensor> start, state, gradients;
  // How far a parameter's gradient of step 1 or a moment at the end may be off, of its own norm; of those not named: 5e-6, and so much a step.
  std::map<std::string, double> bars = {};
  double moments = 1e-5;
};

//   after: called with the eager module after each step
template <class Make, class Loss>
Reference eager(Make make, Loss loss, const std::function<Batch(int64_t)>& whole, int64_t steps,
                const std::function<void(torch::nn::Module&)>& after = {}) {
  Step one =
      compile(meta_init(make), loss, kParityOptimizer, whole(0), data_parallel(init_device_mesh({{"dp_shard", 1}})));
  auto model = make();
  copy_weights(one, *model);
  Reference reference;
  for (const auto& p : model->named_parameters()) reference.start[p.key()] = p.value().detach().clone();
  EagerTrainer trainer(model.ptr(), kParityOptimizer, 1.0);
  for (int64_t k = 0; k < steps; ++k) {
    reference.results.push_back(trainer.step([&] { return loss(model, whole(k)); }));
    if (k == 0) reference.gradients = trainer.gradients;
    if (after) after(*model);
  }
  reference.state = trainer.state();
  return reference;
}

// What of a bucket's gradient on this rank is of one parameter, and the same of the whole.
struct Pieces {
  at::Tensor got, expected;
};
inline Pieces pieces(const Step& step, const StoredTensor& t, const at::Tensor& bucket, const at::Tensor& whole,
                     int64_t begin) {
  const plan::Box box = step.box_of(t.name);
  at::Tensor part = box.block_shape.empty() ? whole : whole.reshape(box.block_shape);
  for (size_t d = 0; d < box.dims.size(); ++d)
    part = part.narrow(static_cast<int64_t>(d), box.dims[d].offset, box.dims[d].length);
  return {bucket.view({-1}).narrow(0, box.flat.length == 0 ? 0 : t.offset + box.flat.offset - begin, box.flat.length),
          part.reshape({-1}).narrow(0, box.flat.offset, box.flat.length)};
}

// Elements whose gradient is less than 1e-4 of the others', of which rounding is a good part: AdamW moves them as far as it moves others.
inline at::Tensor decided_by_rounding(const at::Tensor& gradient) {
  return gradient.abs().lt(1e-4 * gradient.square().mean().sqrt());
}

struct Case {
  DeviceMesh mesh;
  TensorParallel rules;
  DataParallelOptions options = {};
  int64_t micro_batches = 1;
  CompileOptions compile = {};  // but for what is named above
  ContextParallelOptions context = {};
  ExpertParallelOptions expert = {};
};

template <class Make, class Loss>
std::shared_ptr<Program> expect_parity(Make make, Loss loss,
                                       const std::function<Batch(int64_t, int64_t, int64_t)>& batch,
                                       int64_t rows_in_all, const Case& c, const Reference& reference) {
  CAPTURE(to_string(c.mesh));
  CAPTURE(c.micro_batches);
  const Strategy strategy = data_parallel(c.mesh, c.options, c.rules, c.context, c.expert);
  const int64_t data = strategy.data_ranks(), count = rows_in_all / data / c.micro_batches;
  CompileOptions options = c.compile;
  options.max_norm = 1.0;
  options.micro_batches = c.micro_batches;
  auto program = compile_program(meta_init(make), loss, kParityOptimizer, batch(0, 0, count), strategy, options);
  std::mutex mutex;
  std::map<std::string, double> wrong, all;  // squares of step 1's gradients, over the ranks
  run_ranks(static_cast<int>(c.mesh.world_size()), [&](comm::CommWorld& world) {
    Step step(program, &world);
    const int64_t place = c.mesh.group_rank(world.rank(), strategy.data_axes());
    for (const auto& [name, value] : reference.start) {
      const at::Tensor start = step.gather(name);
      std::lock_guard lock(mutex);
      CAPTURE(name);
      CHECK(at::equal(start, value));
    }
    const auto executor = step.executor(batch(0, 0, count));
    std::map<std::string, at::Tensor> gradients;
    executor->on_op = [&](const ir::Op& op, const std::vector<at::Tensor>& results) {
      if (op.is("gradient")) gradients[op.attr<std::string>("param")] = results[0].clone();
    };
    for (size_t k = 0; k < reference.results.size(); ++k) {
      std::vector<Batch> batches;
      for (int64_t m = 0; m < c.micro_batches; ++m)
        batches.push_back(batch(static_cast<int64_t>(k), (m * data + place) * count, count));
      const StepResult got = step(batches);
      executor->on_op = nullptr;
      std::lock_guard lock(mutex);
      CAPTURE(k);
      CHECK(std::abs(got.loss - reference.results[k].loss) <= 1e-6 * std::abs(reference.results[k].loss));
      if (data == 1 && c.micro_batches == 1) CHECK(std::abs(got.own_loss - got.loss) <= 1e-6 * std::abs(got.loss));
      CHECK(std::abs(got.grad_norm - reference.results[k].grad_norm) <= 5e-6 * reference.results[k].grad_norm);
    }
    for (const auto& [name, whole] : reference.gradients) {
      const StoredTensor& t = *std::ranges::find(program->tensors(), name, &StoredTensor::name);
      const int64_t begin = t.sharded ? c.mesh.group_rank(world.rank(), t.shard_axes) * t.shard : 0;
      const auto [mine, expected] = pieces(step, t, gradients.at(t.buffer), whole, begin);
      std::lock_guard lock(mutex);
      wrong[name] += sum_of_squares(mine - expected);
      all[name] += sum_of_squares(expected);
    }
    for (const auto& [name, value] : reference.state) {
      const at::Tensor whole = step.gather(name);
      std::lock_guard lock(mutex);
      CAPTURE(name);
      CHECK(whole.sizes() == value.sizes());
      at::Tensor error = (whole - value).abs();
      if (const auto found = reference.gradients.find(name); found != reference.gradients.end())
        error = error.masked_fill(decided_by_rounding(found->second), 0);
      // Each step of AdamW adds to what the one before left.
      const double steps = static_cast<double>(reference.results.size());
      CHECK(error.max().template item<double>() <= 1e-5 * std::max(1.0, steps / 6));
      // Moments are small: 1e-5 is a large part of one. The worst of the suite after 20 steps is half of the bar, DeepSeek's attention.
      if (name.find(".exp_avg") != std::string::npos) {
        const auto bar = reference.bars.find(name);
        CHECK(std::sqrt(sum_of_squares(whole - value)) <=
              (bar == reference.bars.end() ? reference.moments * steps : bar->second) *
                  std::sqrt(sum_of_squares(value)));
      }
    }
  });
  for (const auto& [name, squares] : wrong) {
    CAPTURE(name);
    const auto bar = reference.bars.find(name);
    CHECK(std::sqrt(squares) <= (bar == reference.bars.end() ? 5e-6 : bar->second) * std::sqrt(all.at(name)));
  }
  return program;
}

}  // namespace sfsdp::testing

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/plan_runs_torch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/planned/planned_executor.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/device_mesh.h"

namespace sfsdp::testing {
namespace {

// Bytes, as numbers that are none equal nothing.
bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

exec::Groups groups_of(const plan::StepPlan& plan, const DeviceMesh& mesh, comm::CommWorld& world) {
  exec::Groups groups;
  for (const auto& op : plan.graph.ops()) {
    const auto axes = ir::axes_of(*op);
    if (!axes) continue;
    const std::string key = exec::axis_key(ir::Attr(*axes));
    std::vector<int> ranks;
    for (const int64_t r : mesh.ranks_of_group(world.rank(), *axes)) ranks.push_back(static_cast<int>(r));
    if (ranks.size() > 1 && !groups.contains(key)) groups[key] = world.group(key, ranks);
  }
  return groups;
}

}  // namespace

bool same_bits(const RankOutcome& a, const RankOutcome& b) {
  return std::ranges::equal(a.results, b.results, same) &&
         std::ranges::equal(a.state, b.state, [](const auto& x, const auto& y) { return same(x.second, y.second); });
}

at::Tensor made_up(const ir::Type& type, double seed) {
  const at::ScalarType dtype = capture::scalar_type_of(type.dtype);
  const at::Tensor wave = at::arange(type.numel(), at::kDouble).add(seed).sin().view(type.shape());
  const at::Tensor made =
      (at::isFloatingType(dtype) || at::isComplexType(dtype) ? wave.mul(0.1) : wave.gt(0)).to(dtype);
  return type.strides.empty() ? made : at::empty_strided(type.shape(), type.strides, made.options()).copy_(made);
}

RankOutcome run_plan(const plan::StepPlan& plan, const std::vector<at::Tensor>& constants, comm::CommWorld& world,
                     const std::function<std::vector<std::vector<at::Tensor>>(int64_t step)>& batches,
                     const device::MakeDevice& make_device) {
  const DeviceMesh mesh(plan.graph.mesh);
  const auto memory = std::make_shared<exec::RankMemory>(&world);
  exec::PlannedExecutor executor(plan, constants, groups_of(plan, mesh, world), {world.rank(), mesh.world_size()},
                                 world.rank(), exec::Rng::Counter, memory, {}, make_device);
  executor.state = exec::state_in_place(plan, world.rank(), memory);
  double seed = world.rank();
  for (auto& [name, value] : executor.state) {
    if (!value.is_floating_point()) continue;
    const auto type = ir::Type::tensor(capture::dtype_of(value.scalar_type()), value.sizes().vec());
    const at::Tensor numbers = made_up(type, seed += 0.37);
    value.copy_(name.ends_with("exp_avg_sq") ? numbers.square() : numbers);
  }
  RankOutcome outcome;
  for (int64_t step = 0; step < 2; ++step)
    for (at::Tensor& result : executor.run(batches(step), {.lr = 1e-2, .step = step + 1, .seed = 7}))
      outcome.results.push_back(std::move(result));
  for (const auto& [name, value] : executor.state) outcome.state[name] = value.clone();
  outcome.copied = executor.copied_bytes();
  return outcome;
}

}  // namespace sfsdp::testing

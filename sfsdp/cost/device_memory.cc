// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/device_memory.h"

#include <algorithm>

namespace sfsdp::cost {
namespace {

constexpr int64_t kMiB = 1 << 20;

// PyTorch's context takes 300 MB with few kernels, which are loaded where they are first called, and 1 GB where all are loaded
// (pytorch issue 107667). Estimated for the kernels of a training step.
constexpr int64_t kContext = 512 * kMiB;
// Measured on A100, of groups of more than two (nccl issue 964).
constexpr int64_t kCommunicator = 688 * kMiB;
// Measured by others: 31.2 ms to ask for 1 GiB and give it back, of a pool that keeps nothing (vortex-data/vortex pull request 7831;
// the device is not named). By pages of 2 MiB the same takes more.
constexpr double kSecondsPerByte = 31.2e-3 / 2 / static_cast<double>(1 << 30);

}  // namespace

int64_t bytes_outside(const Machine& machine, const std::vector<MeshAxis>& mesh) {
  if (machine.multiprocessors <= 1) return 0;
  const auto axes = std::ranges::count_if(mesh, [](const MeshAxis& axis) { return axis.size > 1; });
  return kContext + (axes > 1 ? axes + 1 : axes) * kCommunicator;
}

double moving_seconds(double bytes) { return bytes * kSecondsPerByte; }

}  // namespace sfsdp::cost

// SPDX-License-Identifier: BSD-3-Clause
// What a step's compute lane is busy with, or waits for, by class.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/sim/simulate.h"

namespace sfsdp::sim {

// Counts rank 0 and all micro-batches.
struct ClassShare {
  std::string name;
  int64_t count = 0;   // kernels, or collectives
  double seconds = 0;  // on the compute lane: of kernels, or what it waits for collectives of this kind
  double bytes = 0;    // that kernels move to and from memory, collectives between ranks
  double flops = 0;
};

// product, attention, row, pointwise, optimizer, copy or library, by what the kernel's ops are.
std::string_view class_of_kernel(std::span<const ir::Op* const> kernel);

// Those classes of kernels, each kind of collective, and idle, where the host or the last collective is waited for. Classes
// without any are left out. The seconds add up to the step's.
std::vector<ClassShare> op_classes(const Simulation& simulation);

}  // namespace sfsdp::sim

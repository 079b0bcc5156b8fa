// SPDX-License-Identifier: BSD-3-Clause
// Memory of a rank over a simulated step: which buffers of the memory plan are alive when, by what they are for.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::sim {

enum class MemoryKind : uint8_t {
  Parameters,   // gathered, or cast to be gathered
  Activations,  // of forward, kept for backward; what backward computes again of them; the batch
  Gradients,    // of parameters: as backward makes them, packed, reduced, accumulated, clipped
  Workspace,    // the rest: what one part of the step makes and reads itself, gradients of activations among it
};
inline constexpr size_t kMemoryKinds = 4;
std::string_view to_string(MemoryKind kind);

// By buffer of the plan.
std::vector<MemoryKind> memory_kinds(const ir::Graph& graph, const plan::MemoryPlan& plan);

// From `at` (s) to the next sample's. State is constant and not in it.
struct MemorySample {
  double at = 0;
  std::array<int64_t, kMemoryKinds> bytes = {};
  int64_t total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }
};

// A sample for each kernel of rank 0, with what the plan has alive while it runs. Between two kernels, where starts and
// waits stand, the fullest moment. The largest total is the plan's live_bytes.
std::vector<MemorySample> memory_over_time(const ir::Graph& graph, const plan::MemoryPlan& plan,
                                           const Simulation& simulation);

}  // namespace sfsdp::sim

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/report/op_classes.h"

#include <algorithm>
#include <array>

#include "sfsdp/ir/opset.h"

namespace sfsdp::sim {
namespace {

// The op of a kernel that stands first here gives the kernel its class.
constexpr std::array<const char*, 7> kKernels = {"product", "attention", "optimizer", "library",
                                                 "copy",    "row",       "pointwise"};

size_t class_of(const ir::Op& op) {
  if (ir::is_update(op)) return 2;
  if (op.is("pack", "unpack") || ir::is_wait(op)) return 4;
  const ir::OpRow* row = op.opcode.row();
  switch (row ? row->cost : ir::CostClass::Alone) {
    case ir::CostClass::Product: return 0;
    case ir::CostClass::Attention: return 1;
    case ir::CostClass::Alone: return 3;
    case ir::CostClass::Reduction: return 5;
    case ir::CostClass::Free:
    case ir::CostClass::Communication:
    case ir::CostClass::Pointwise: break;
  }
  return 6;
}

size_t class_of(std::span<const ir::Op* const> kernel) {
  size_t kind = kKernels.size() - 1;
  for (const ir::Op* op : kernel) kind = std::min(kind, class_of(*op));
  return kind;
}

}  // namespace

std::string_view class_of_kernel(std::span<const ir::Op* const> kernel) { return kKernels.at(class_of(kernel)); }

std::vector<ClassShare> op_classes(const Simulation& simulation) {
  std::vector<ClassShare> shares;
  for (const char* name : kKernels) shares.push_back({.name = name});
  for (const auto& [kind, seconds] : simulation.communication_seconds) shares.push_back({.name = kind});
  const auto share_of = [&](std::string_view name) -> ClassShare& {
    return *std::ranges::find(shares, name, &ClassShare::name);
  };
  for (const Event& event : simulation.events) {
    if (event.kind == Event::Kernel) {
      const int index = simulation.kernels.kernel_of[static_cast<size_t>(event.position)];
      const cost::Kernel& kernel = simulation.kernels.kernels[static_cast<size_t>(index)];
      ClassShare& share = shares[class_of(kernel.ops)];
      ++share.count;
      share.seconds += event.end - event.begin;
      share.bytes += kernel.bytes;
      share.flops += kernel.flops;
    } else if (event.kind != Event::Start) {
      ClassShare& share = share_of(ir::collective_kind(*event.op));
      if (event.kind == Event::Wait) {
        share.seconds += event.end - event.begin;
      } else {
        ++share.count;
        share.bytes += event.bytes;
      }
    }
  }
  double busy = 0;
  for (const ClassShare& share : shares) busy += share.seconds;
  std::erase_if(shares, [](const ClassShare& share) { return share.count == 0; });
  shares.push_back({.name = "idle", .seconds = std::max(0.0, simulation.step_seconds - busy)});
  return shares;
}

}  // namespace sfsdp::sim

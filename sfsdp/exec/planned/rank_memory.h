// SPDX-License-Identifier: BSD-3-Clause
// The memory of a rank that all plans of a run share: state, and the window. Addresses stay for the whole run, so that what one plan
// has left is where the next one reads it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "sfsdp/base/growing_memory.h"
#include "sfsdp/comm/communicator.h"
#include "sfsdp/exec/workspace.h"
#include "sfsdp/plan/memory_plan.h"

namespace sfsdp::exec {

class RankMemory {
 public:
  // world: whose ranks read each other's windows where they can; nullptr: there are no others
  explicit RankMemory(comm::CommWorld* world = nullptr) : world_(world) {}
  ~RankMemory();
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  // Makes a region at least so large; what it holds stays, at the same address. New bytes are zeros, and their pages are there.
  // throws: UserError where the system does not give that much
  std::byte* grow(plan::Region region, int64_t bytes);
  const std::byte* begin(plan::Region region) const;
  int64_t bytes(plan::Region region) const;
  // The compute lane's, whose kernels run one after the other; at least so large.   throws: as grow
  Workspace& grow_workspace(int64_t bytes);

 private:
  comm::CommWorld* world_;
  std::array<std::shared_ptr<GrowingMemory>, plan::kRegions> memories_;  // by region; null: nothing yet
  std::unique_ptr<GrowingMemory> workspace_memory_;
  std::unique_ptr<Workspace> workspace_;
};

}  // namespace sfsdp::exec

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/rank_memory.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/exec/memory_counter.h"

namespace sfsdp::exec {
namespace {

int64_t machine_bytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

// Addresses for all of the machine's memory, so that nothing moves; where a limit forbids that, for these bytes alone.
std::unique_ptr<GrowingMemory> private_memory(int64_t bytes) {
  try {
    return std::make_unique<GrowingMemory>(GrowingMemory::Kind::Private, std::max(machine_bytes(), bytes));
  } catch (const std::system_error&) {
    return std::make_unique<GrowingMemory>(GrowingMemory::Kind::Private, bytes);
  }
}

//   what: "region window"
template <class Grow>
void grow_counted(int64_t bytes, std::string_view what, Grow grow) {
  try {
    count_region(grow());
  } catch (const std::system_error& error) {
    throw UserError(
        concat("memory for the plan: ", bytes, " bytes of ", what, ": ", error.what(),
               "\n  expected that much free memory, and no limit (ulimit -v, a container's) below it; sfsdp plan"
               " says what would fit"));
  }
}

int64_t grow_to(GrowingMemory& memory, int64_t bytes) {
  const int64_t before = memory.bytes();
  memory.grow(bytes);
  return memory.bytes() - before;
}

}  // namespace

RankMemory::~RankMemory() {
  for (const auto& memory : memories_)
    if (memory) count_region(-memory->bytes());
  if (!workspace_) return;
  if (workspace_->blocks() == 0) {
    count_region(-workspace_memory_->bytes());
  } else {  // LibTorch has kept something of a kernel's: it gives it back whenever it wants
    static_cast<void>(workspace_memory_.release());
    static_cast<void>(workspace_.release());
  }
}

std::byte* RankMemory::grow(plan::Region region, int64_t bytes) {
  bytes = std::max<int64_t>(bytes, 1);
  auto& memory = memories_[static_cast<size_t>(region)];
  grow_counted(bytes, concat("region ", plan::to_string(region)), [&] {
    if (!memory && region == plan::Region::Window && world_)
      memory = world_->make_window(std::max(machine_bytes(), bytes));
    if (!memory) memory = private_memory(bytes);
    return grow_to(*memory, bytes);
  });
  return memory->begin();
}

Workspace& RankMemory::grow_workspace(int64_t bytes) {
  bytes = std::max<int64_t>(bytes, 1);
  grow_counted(bytes, "a workspace", [&] {
    if (!workspace_memory_) workspace_memory_ = private_memory(bytes);
    return grow_to(*workspace_memory_, bytes);
  });
  if (!workspace_) workspace_ = std::make_unique<Workspace>();
  workspace_->set_memory(workspace_memory_->begin(), static_cast<size_t>(workspace_memory_->bytes()));
  return *workspace_;
}

const std::byte* RankMemory::begin(plan::Region region) const {
  const auto& memory = memories_[static_cast<size_t>(region)];
  return memory ? memory->begin() : nullptr;
}

int64_t RankMemory::bytes(plan::Region region) const {
  const auto& memory = memories_[static_cast<size_t>(region)];
  return memory ? memory->bytes() : 0;
}

}  // namespace sfsdp::exec

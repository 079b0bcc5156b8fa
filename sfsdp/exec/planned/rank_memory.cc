// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/rank_memory.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/exec/memory_counter.h"

namespace sfsdp::exec {

RankMemory::~RankMemory() {
  for (const auto& memory : memories_)
    if (memory) count_region(-memory->bytes());
}

std::byte* RankMemory::grow(plan::Region region, int64_t bytes) {
  bytes = std::max<int64_t>(bytes, 1);
  auto& memory = memories_[static_cast<size_t>(region)];
  try {
    if (!memory) memory = make(region, bytes);
    const int64_t before = memory->bytes();
    memory->grow(bytes);
    count_region(memory->bytes() - before);
  } catch (const std::system_error& error) {
    throw UserError(
        concat("memory for the plan: ", bytes, " bytes of region ", plan::to_string(region), ": ", error.what(),
               "\n  expected that much free memory, and no limit (ulimit -v, a container's) below it; sfsdp plan"
               " says what would fit"));
  }
  return memory->begin();
}

// Addresses for all of the machine's memory, so that nothing moves; where a limit forbids that, for these bytes alone.
std::shared_ptr<GrowingMemory> RankMemory::make(plan::Region region, int64_t bytes) const {
  const int64_t all = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  if (region == plan::Region::Window && world_)
    if (auto window = world_->make_window(std::max(all, bytes))) return window;
  try {
    return std::make_shared<GrowingMemory>(GrowingMemory::Kind::Private, std::max(all, bytes));
  } catch (const std::system_error&) {
    return std::make_shared<GrowingMemory>(GrowingMemory::Kind::Private, bytes);
  }
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

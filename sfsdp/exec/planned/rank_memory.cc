// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/rank_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/exec/memory_counter.h"

namespace sfsdp::exec {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

int64_t round_up(int64_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

[[noreturn]] void refuse(plan::Region region, int64_t bytes) {
  throw UserError(
      concat("memory for the plan: ", bytes, " bytes of region ", plan::to_string(region), ": ", std::strerror(errno),
             "\n  expected that much free memory, and no limit (ulimit -v, a container's) below it; sfsdp plan"
             " says what would fit"));
}

}  // namespace

RankMemory::~RankMemory() {
  for (const Mapping& m : mappings_) {
    if (!m.begin) continue;
    munmap(m.begin, static_cast<size_t>(m.reserved));
    count_region(-m.bytes);
  }
}

std::byte* RankMemory::grow(plan::Region region, int64_t bytes) {
  Mapping& m = of(region);
  bytes = round_up(std::max<int64_t>(bytes, 1));
  if (!m.begin) {
    // Addresses for all of the machine's memory, so that nothing moves; where a limit forbids that, for these bytes alone.
    const int64_t all = round_up(sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    for (const int64_t reserved : {std::max(all, bytes), bytes}) {
      void* at =
          mmap(nullptr, static_cast<size_t>(reserved), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (at == MAP_FAILED) continue;
      m = {static_cast<std::byte*>(at), 0, reserved};
      break;
    }
    if (!m.begin) refuse(region, bytes);
  }
  if (bytes <= m.bytes) return m.begin;
  errno = ENOMEM;
  if (bytes > m.reserved || mprotect(m.begin, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE) != 0)
    refuse(region, bytes);
  std::byte* added = m.begin + m.bytes;
  const auto count = static_cast<size_t>(bytes - m.bytes);
  madvise(added, count, MADV_HUGEPAGE);  // a system without them gives small pages
  std::memset(added, 0, count);          // a page that is first written in a step costs up to seven times a write
  count_region(bytes - m.bytes);
  m.bytes = bytes;
  return m.begin;
}

}  // namespace sfsdp::exec

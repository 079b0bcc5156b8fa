// SPDX-License-Identifier: BSD-3-Clause
// The memory of a rank that all plans of a run share: state, and the window. Addresses stay for the whole run, so that what one plan
// has left is where the next one reads it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sfsdp/plan/memory_plan.h"

namespace sfsdp::exec {

class RankMemory {
 public:
  RankMemory() = default;
  ~RankMemory();
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  // Makes a region at least so large; what it holds stays, at the same address. New bytes are zeros, and their pages are there.
  // throws: UserError where the system does not give that much
  std::byte* grow(plan::Region region, int64_t bytes);
  const std::byte* begin(plan::Region region) const { return of(region).begin; }
  int64_t bytes(plan::Region region) const { return of(region).bytes; }

 private:
  struct Mapping {
    std::byte* begin = nullptr;
    int64_t bytes = 0, reserved = 0;
  };
  Mapping& of(plan::Region region) { return mappings_[static_cast<size_t>(region)]; }
  const Mapping& of(plan::Region region) const { return mappings_[static_cast<size_t>(region)]; }
  std::array<Mapping, plan::kRegions> mappings_;
};

}  // namespace sfsdp::exec

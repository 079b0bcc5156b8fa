// SPDX-License-Identifier: BSD-3-Clause
// What a step copies only because its collectives run over buckets.
#pragma once

#include <cstdint>

#include "sfsdp/plan/step_plan.h"

namespace sfsdp::plan {

// Bytes of one step on one rank, each read once and written once.
struct CopiedBytes {
  int64_t in = 0;   // into buckets (pack), of parts that were not made there
  int64_t out = 0;  // out of buckets (unpack)
  bool operator==(const CopiedBytes&) const = default;
};

CopiedBytes copied_bytes(const StepPlan& plan);

}  // namespace sfsdp::plan

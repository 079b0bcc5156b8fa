// SPDX-License-Identifier: BSD-3-Clause
// Where a plan's text puts each value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sfsdp/ir/side_table.h"
#include "sfsdp/plan/step_plan.h"

namespace sfsdp::plan {

struct Place {
  Region region = Region::Window;
  int64_t offset = 0;  // bytes from the region's begin to the value's first element
};

// By value of the graph: what the lines of constants, state, buffers and inside say, what donates= takes over, where a view begins.
// nullopt: it has no memory, as only its own kernel reads it.
class Places {
 public:
  // Those of one rank: some views begin elsewhere on each.
  Places(const StepPlan& plan, int64_t rank);
  const std::optional<Place>& of(const ir::Value* value) const { return places_[value]; }

 private:
  ir::ValueTable<std::optional<Place>> places_;
};

}  // namespace sfsdp::plan

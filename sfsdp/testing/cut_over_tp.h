// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>

#include "sfsdp/ir/graph.h"
#include "sfsdp/parallel/tensor_parallel.h"

namespace sfsdp::testing {

// A step of the whole's sizes, partitioned over tp alone by the rules; what ir::verify or plan::verify_layouts finds wrong with it fails
// the test. The text may be indented as a whole.
//   throws: UserError as find_cuts and partition do
ir::Graph cut_over_tp(std::string_view text, const TensorParallel& rules, int64_t ranks);

}  // namespace sfsdp::testing

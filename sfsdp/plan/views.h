// SPDX-License-Identifier: BSD-3-Clause
// Where views begin in the memory that they share.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/plan/memory_plan.h"

namespace sfsdp::plan {

// "%a at +256", "%a at +256 +64*dp_shard".
std::string text_of(const View& view);

// Views that do not begin where their storage does, in the graph's order.
std::vector<View> find_views(const ir::Graph& graph);

// What is wrong, a text each: a view whose type has other strides than LibTorch would give it, one that no strides can say,
// and what the plan says of where views begin.
std::vector<std::string> check_views(const ir::Graph& graph, const std::vector<View>& views);

}  // namespace sfsdp::plan

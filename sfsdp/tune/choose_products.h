// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "sfsdp/cost/product_times.h"
#include "sfsdp/passes/fuse/name_kernels.h"

namespace sfsdp::tune {

// What may be gained must be more than what measurements of one product differ by from run to run.
inline constexpr double kLeastGain = 0.03;

// For each shape the fastest library; `rule`, or aten.mm where that has no time, unless another one is faster by more than kLeastGain.
passes::ProductTable choose_products(const cost::ProductTimes& times, const std::string& rule);

}  // namespace sfsdp::tune

// SPDX-License-Identifier: BSD-3-Clause
// How much memory the units of a schedule need.
#pragma once

#include <cstdint>

#include "sfsdp/tune/profile.h"

namespace sfsdp::tune {

// The most bytes that are alive at once, state included, without what addresses lose. All gradients are copied into their
// buckets: which copies write_in_buckets saves depends on the step's peak.
int64_t peak_of_units(const StepProfile& profile, const Schedule& schedule);

// The last unit is the first that backward reads: it is kept gathered, then those before it, as long as all fits.
//   budget: bytes, state included
void keep_what_fits(const StepProfile& profile, Schedule& schedule, int64_t budget);

}  // namespace sfsdp::tune

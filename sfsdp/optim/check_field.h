// SPDX-License-Identifier: BSD-3-Clause
// Refuses numbers that an optimizer would train nonsense with. For optim/ only.
#pragma once

#include <cmath>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp {

// `holds`: false refuses the value, as a value that is not finite is in any case.
inline void check_field(const char* name, double value, bool holds, const char* expected) {
  if (!holds || !std::isfinite(value))
    throw UserError(concat("compile: ", name, " = ", value, "\n  expected ", expected));
}

inline void check_at_least_0(const char* name, double value) {
  check_field(name, value, value >= 0, "a finite number of at least 0");
}

inline void check_decay(const char* name, double value) {
  check_field(name, value, value >= 0 && value < 1, "a number from 0 to below 1");
}

}  // namespace sfsdp

// SPDX-License-Identifier: BSD-3-Clause
// Whether each value has the memory that it needs, for as long as it is needed, and what is handed over lies in place.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/plan/step_plan.h"

namespace sfsdp::plan {

// What is wrong with a plan, in the order in which it is found.
struct Notes {
  template <class... Parts>
  void operator()(const Parts&... parts) {
    errors.push_back(concat(parts...));
  }
  void add(const std::string& error) {  // "": nothing
    if (!error.empty()) errors.push_back(error);
  }
  void compare(const std::string& what, int64_t got, int64_t expected) {
    if (got != expected) (*this)(what, " = ", got, "\n  expected ", expected);
  }

  std::vector<std::string> errors;
};

// The plan's graph must be sound.
void check_buffers(const StepPlan& plan, Notes& note);

}  // namespace sfsdp::plan

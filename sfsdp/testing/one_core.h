// SPDX-License-Identifier: BSD-3-Clause
// This thread, and what it starts, on one core: as taskset, a container or mpirun --bind-to core has it.
#pragma once

#include <sched.h>

#include <vector>

#include "sfsdp/base/cores.h"

namespace sfsdp::testing {

class OneCore {
 public:
  OneCore() : before_(cores_of(0)) { bind({before_.back()}); }
  ~OneCore() { bind(before_); }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;

 private:
  static void bind(const std::vector<int>& cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : cores) CPU_SET(static_cast<size_t>(core), &set);
    sched_setaffinity(0, sizeof set, &set);
  }
  std::vector<int> before_;
};

}  // namespace sfsdp::testing

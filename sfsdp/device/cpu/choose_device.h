// SPDX-License-Identifier: BSD-3-Clause
// Whether collectives run on threads of their own.
#pragma once

#include <cstdint>
#include <string_view>

#include "sfsdp/device/device.h"

namespace sfsdp::device {

// What this host has, and what its ranks take of it.
struct Cores {
  int64_t count = 1;    // that these ranks may use, all together
  int64_t ranks = 1;    // on this host
  int64_t threads = 1;  // of each that compute
};

// "threads" where each rank has a core that computes nothing, else "inline": a collective that shares a core with a product takes
// from it what it hides.
std::string_view lanes_for(const Cores& cores);

// None, for the thread that runs the step.
//   lanes: "inline", "threads", or "auto": lanes_for(cores)
MakeDevice cpu_device(std::string_view lanes, const Cores& cores);

}  // namespace sfsdp::device

// SPDX-License-Identifier: BSD-3-Clause
// A simulated step in Chrome's trace format, for Perfetto.
// Source: "Trace Event Format" of the Chromium project.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "sfsdp/sim/report/memory_timeline.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::sim {

// A row per lane; an arrow from each start to its collective and from there to its wait; a counter of memory by kind,
// in bytes, with the state that is there all the time. No samples: no counter.
std::string chrome_trace(const Simulation& simulation, std::span<const MemorySample> memory = {},
                         int64_t state_bytes = 0);

}  // namespace sfsdp::sim

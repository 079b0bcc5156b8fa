// SPDX-License-Identifier: BSD-3-Clause
// A simulated step in Chrome's trace format, for Perfetto.
// Source: "Trace Event Format" of the Chromium project.
#pragma once

#include <string>

#include "sfsdp/sim/simulate.h"

namespace sfsdp::sim {

// A row per lane; an arrow from each start to its collective and from there to its wait.
std::string chrome_trace(const Simulation& simulation);

}  // namespace sfsdp::sim

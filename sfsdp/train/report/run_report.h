// SPDX-License-Identifier: BSD-3-Clause
// Runs as one HTML page that needs nothing else: loss, speed, gradient norm, memory, time, configuration, one run over the
// other. The page itself is run_page.html, which draws the data that is put into it here.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "sfsdp/train/report/run_files.h"

namespace sfsdp::train {

//   points: most that a curve of a run has; a longer run shows means, with least and most around them
std::string run_report(std::span<const RunFiles> runs, size_t points = 1500);

// run_page.html as text; CMake makes the .cc of it.
std::string_view run_page();

}  // namespace sfsdp::train

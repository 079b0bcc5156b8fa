// SPDX-License-Identifier: BSD-3-Clause
// Titles of the sections of a plan's text, which printer and parser share. A section is a title, then indented lines.
//   plan target=NAME alignment=N window_alignment=N live_bytes=N peak_position=N
//   (the graph)
//   lanes:      "  compute workspace=N:", then "  AXES/CHANNEL workspace=N: %collective ..."
//   edges:      "  LANE.NUMBER -> LANE.NUMBER"
//   regions:    "  REGION bytes=N", all of them
//   state:      "  %value REGION offset=N bytes=N first=N last=N"
//   buffers:    the same, " carried" after it where micro-batches add up
//   inside:     "  %value inside %other at +BYTES", what lies in the buffer of another value
#pragma once

#include <string_view>

namespace sfsdp::plan {

inline constexpr std::string_view kLanes = "lanes:", kEdges = "edges:", kRegionsTitle = "regions:", kState = "state:",
                                  kBuffers = "buffers:", kInside = "inside:";

}  // namespace sfsdp::plan

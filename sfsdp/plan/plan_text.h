// SPDX-License-Identifier: BSD-3-Clause
// Titles of the sections of a plan's text, which printer and parser share. A section is a title, then indented lines.
//   plan target=NAME ... live_bytes=N peak_position=N layout=HASH/ENTRIES (or none), between them the numbers of the target, kTargetKeys
//   (the graph)
//   lanes:      "  compute workspace=N:", then "  AXES/CHANNEL workspace=N: %collective ..."
//   edges:      "  LANE.NUMBER -> LANE.NUMBER"
//   regions:    "  REGION bytes=N", all of them
//   host:       "  NAME DTYPE io offset=N", the numbers that the host writes for kernels; then "  batch after LANE.NUMBER ...", what the
//               host waits for before it writes them and the batch, and "  batch before LANE.NUMBER ...", what waits for that
//   constants:  as state, " bits=HASH" after it, or " bits=none" where the plan was made without values; neither for a scalar
//   state:      "  %value REGION offset=N bytes=N first=N last=N"
//   unread:     "  NAME REGION offset=N bytes=N", state of the run that the graph does not read
//   buffers:    as state, " carried" after it where micro-batches add up
//   inside:     "  %value inside %other at +BYTES", what lies in the buffer of another value
//   views:      "  %value at +BYTES", views that do not begin where their storage does; " +BYTES*AXIS" after it for each axis of the
//               mesh along which ranks see other parts
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "sfsdp/cost/target.h"

namespace sfsdp::plan {

// A number of the target that the plan's sizes follow from.
struct TargetKey {
  std::string_view name;
  int64_t most;  // of a text that is read: sums and products of such numbers stay numbers
  int64_t (*get)(const cost::Target&);
  void (*set)(cost::Target&, int64_t);
};
inline constexpr int64_t kMostAlignment = 1 << 30;  // the largest page of any machine
inline constexpr std::array<TargetKey, 7> kTargetKeys = {{
    {"product_bytes=", int64_t{1} << 40, [](const cost::Target& t) { return t.product_bytes; },
     [](cost::Target& t, int64_t n) { t.product_bytes = n; }},
    {"communicator_bytes=", int64_t{1} << 40, [](const cost::Target& t) { return t.communicator_bytes; },
     [](cost::Target& t, int64_t n) { t.communicator_bytes = n; }},
    {"blocks=", 1 << 12, [](const cost::Target& t) { return t.blocks; },
     [](cost::Target& t, int64_t n) { t.blocks = n; }},
    {"accumulates_in_memory=", 1, [](const cost::Target& t) { return int64_t{t.accumulates_in_memory}; },
     [](cost::Target& t, int64_t n) { t.accumulates_in_memory = n != 0; }},
    {"is_cpu=", 1, [](const cost::Target& t) { return int64_t{t.is_cpu}; },
     [](cost::Target& t, int64_t n) { t.is_cpu = n != 0; }},
    {"alignment=", kMostAlignment, [](const cost::Target& t) { return t.alignment; },
     [](cost::Target& t, int64_t n) { t.alignment = n; }},
    {"window_alignment=", kMostAlignment, [](const cost::Target& t) { return t.window_alignment; },
     [](cost::Target& t, int64_t n) { t.window_alignment = n; }},
}};

inline constexpr std::string_view kLanes = "lanes:", kEdges = "edges:", kRegionsTitle = "regions:", kHost = "host:",
                                  kLoadAfter = "batch after", kLoadBefore = "batch before",
                                  kBits = "bits=", kNoBits = "none", kConstants = "constants:", kState = "state:",
                                  kUnread = "unread:", kBuffers = "buffers:", kInside = "inside:", kViews = "views:";

}  // namespace sfsdp::plan

// SPDX-License-Identifier: BSD-3-Clause
// A step in Chrome's trace format, for Perfetto: a simulated one, or one that has run (train/op_trace.h).
// Source: "Trace Event Format" of the Chromium project.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "sfsdp/sim/report/memory_timeline.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::sim {

struct TraceEvent {
  Event::Kind kind = Event::Kernel;
  size_t lane = 0;
  std::string name = {}, section = {}, module = {};
  double begin = 0, end = 0;  // s
  int64_t bytes = 0;
  int64_t flow = -1;  // the same for a start, its collective and its wait, which an arrow joins
};

// Builds the text of a trace: lanes, events and other rows in the order in which they are added.
class TraceText {
 public:
  // A row of text is of one process: a rank.
  explicit TraceText(int64_t process = 0) : process_(process) {}

  void lane(size_t number, const std::string& name);
  void add(const TraceEvent& event);
  // An object of JSON, without process and lane.
  void row(const std::string& object);
  std::string text() const;

 private:
  int64_t process_;
  std::string rows_;
};

// A row per lane; an arrow from each start to its collective and from there to its wait; a counter of memory by kind,
// in bytes, with the state that is there all the time. No samples: no counter.
std::string chrome_trace(const Simulation& simulation, std::span<const MemorySample> memory = {},
                         int64_t state_bytes = 0);

}  // namespace sfsdp::sim

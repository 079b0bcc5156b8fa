// SPDX-License-Identifier: BSD-3-Clause
// A simulated step as one HTML page that needs nothing else: timeline, memory by kind, buckets, collectives by kind. The
// page itself is report_page.html, which draws the data that is put into it here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/report/bucket_table.h"
#include "sfsdp/sim/report/memory_timeline.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::sim {

struct HtmlReport {
  std::string title, setup;                                  // "llama3 8B on 8 × H100"; mesh, execution, …
  std::vector<std::pair<std::string, std::string>> figures;  // of the header: name, value
  bool fits = true;
  std::string memory_name = "Memory, GiB";  // what the samples are of
  int64_t limit_bytes = 0;                  // memory that the step may have
  int64_t state_bytes = 0;
  std::vector<BucketRow> buckets;
};

// Longer lists are thinned: neighbours on a lane that no screen tells apart become one event with their sums, samples of
// memory that share a pixel the fullest of them.
struct HtmlLimits {
  size_t events = 20000;
  size_t samples = 4000;
};

std::string html_report(const HtmlReport& report, const Simulation& simulation, std::span<const MemorySample> memory,
                        const HtmlLimits& limits = {});

}  // namespace sfsdp::sim

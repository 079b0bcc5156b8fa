// SPDX-License-Identifier: BSD-3-Clause
// Where a measured step parts from a simulated one: traces of `simulate --trace` and of profiling.enable_profiling, which name section
// and module of each kernel alike.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/tools/commands.h"

namespace sfsdp::tools {

// Time of one step, in milliseconds: of kernels by section and module, and what the compute lane spends on communication.
struct TraceTimes {
  struct Part {
    std::string section, module;  // "" of what has none
    double ms = 0;
  };
  std::vector<Part> parts;  // sorted by section and module
  double communication_ms = 0;
  double kernels_ms() const;
};

// The mean of several measured steps.
//   throws: UserError naming the file, where it is no such trace
TraceTimes times_of_trace(std::string_view json, const std::string& file);

// Totals, sections, then the parts with the largest differences, `most` of them.
void print_comparison(const TraceTimes& predicted, const TraceTimes& measured, size_t most, std::ostream& out);

// inspect --compare PREDICTED MEASURED
int run_compare_traces(const Request& request, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools

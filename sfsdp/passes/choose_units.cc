// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/choose_units.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/passes/unit_cost.h"

namespace sfsdp::passes {

Schedule greedy_units(const StepProfile& profile, int64_t budget_bytes) {
  Schedule schedule;
  const auto last = static_cast<int64_t>(profile.live[0].size()) - 1;
  const double headroom = static_cast<double>(budget_bytes - profile.state_bytes - profile.most_live(0, last));
  const size_t n = profile.params.size();
  double cover_forward = 0, cover_backward = 0, bytes_before = 0, gather_before = 0, gather_open = 0;
  for (size_t first = 0; first < n;) {
    size_t end = first + 1;
    std::string_view reason = "the last parameter";
    for (; end < n; ++end) {
      const UnitCost grown(profile, first, end + 1);
      if (grown.gather() > cover_forward)
        reason = "forward: its gather would outlast the compute of the unit before";
      else if (grown.reduce() + gather_before > cover_backward)
        reason = "backward: its reduction would outlast the compute of the unit before";
      else if (bytes_before + grown.gathered_bytes() + 2 * grown.reduced_bytes() > headroom)
        reason = "memory: two such units would not fit";
      else
        continue;
      break;
    }
    schedule.push_back({.first = first, .end = end, .reason = reason});
    const UnitCost closed(profile, first, end);
    cover_forward = closed.forward_compute();
    cover_backward = closed.backward_compute();
    bytes_before = closed.gathered_bytes() + closed.reduced_bytes();
    gather_before = gather_open;
    gather_open = closed.gather();
    first = end;
  }
  return schedule;
}

Schedule named_units(const StepProfile& profile, const std::vector<std::string>& unit_of_param) {
  SFSDP_CHECK(unit_of_param.size() == profile.params.size(), unit_of_param.size(), " names for ",
              profile.params.size());
  Schedule schedule;
  for (size_t i = 0; i < unit_of_param.size(); ++i)
    if (i > 0 && unit_of_param[i] == unit_of_param[i - 1])
      schedule.back().end = i + 1;
    else
      schedule.push_back({.first = i, .end = i + 1, .reason = "named"});
  return schedule;
}

}  // namespace sfsdp::passes

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/search.h"

#include <algorithm>
#include <utility>

#include "sfsdp/tune/unit_cost.h"

namespace sfsdp::tune {

Schedule greedy_units(const StepProfile& profile, int64_t budget_bytes) {
  Schedule schedule;
  const int64_t live = std::ranges::max(profile.live);
  const auto headroom = static_cast<double>(budget_bytes - profile.state_bytes - live);
  const size_t n = profile.params.size();
  double cover_forward = 0, cover_backward = 0, bytes_before = 0, gather_before = 0, gather_open = 0;
  for (size_t first = 0; first < n;) {
    size_t end = first + 1;
    Reason reason = Reason::LastParameter;
    for (; end < n; ++end) {
      const UnitCost grown(profile, first, end + 1);
      if (grown.gather() > cover_forward)
        reason = Reason::Gather;
      else if (grown.reduce() + gather_before > cover_backward)
        reason = Reason::Reduction;
      else if (bytes_before + grown.gathered_bytes() + 2 * grown.reduced_bytes() > headroom)
        reason = Reason::Memory;
      else
        continue;
      break;
    }
    schedule.push_back({.first = first, .end = end, .order = profile.order, .reason = reason});
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

Schedule named_units(const StepProfile& profile, const std::function<std::string(const std::string&)>& unit_of) {
  Schedule schedule;
  std::string open;
  for (size_t i = 0; i < profile.params.size(); ++i) {
    std::string unit = unit_of(profile.params[i].name);
    if (i == 0 || unit != open) schedule.push_back({.first = i, .order = profile.order});
    schedule.back().end = i + 1;
    open = std::move(unit);
  }
  return schedule;
}

}  // namespace sfsdp::tune

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/choose_units.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/mesh/chunk.h"

namespace sfsdp::passes {
namespace {

// Seconds and bytes of the parameters [first, end) as one unit.
class Range {
 public:
  Range(const StepProfile& profile, size_t first, size_t end) : profile_(profile), first_(first), end_(end) {
    elements_.resize(profile.kinds.size());
    for (size_t i = first; i < end; ++i) elements_[profile.params[i].kind] += profile.params[i].elements;
  }
  double gather() const {
    return over_kinds([&](const KindProfile& k, double n) {
      return k.gathered > 0 ? cost::collective_seconds("all_gather", n * k.gathered, k.gather_group, profile_.machine)
                            : 0;
    });
  }
  double reduce() const {
    return over_kinds([&](const KindProfile& k, double n) {
      return k.reduction.empty()
                 ? 0
                 : cost::collective_seconds(k.reduction, n * k.reduced, k.reduce_group, profile_.machine);
    });
  }
  double gathered_bytes() const {
    return over_kinds([](const KindProfile& k, double n) { return n * k.gathered; });
  }
  double reduced_bytes() const {
    return over_kinds([](const KindProfile& k, double n) { return k.reduction.empty() ? 0 : n * k.reduced; });
  }
  double forward_compute() const {
    const auto& params = profile_.params;
    const int64_t from = params[first_].fwd_first;
    const int64_t to = end_ < params.size() ? params[end_].fwd_first : profile_.backward_begin;
    return from < 0 || to < from ? 0 : profile_.seconds_between(from, to);
  }
  // Backward goes through the units in the other direction: this one's part ends where that of its predecessor begins.
  double backward_compute() const {
    const int64_t from = first_backward(first_, end_);
    const int64_t to = first_ == 0 ? profile_.body_end : first_backward(0, first_);
    return from < 0 || to < from ? 0 : profile_.seconds_between(from, to);
  }

 private:
  template <class Of>
  double over_kinds(Of of) const {
    double sum = 0;
    for (size_t k = 0; k < elements_.size(); ++k)
      if (elements_[k] > 0)
        sum += of(profile_.kinds[k], static_cast<double>(round_up(elements_[k], profile_.kinds[k].multiple)));
    return sum;
  }
  int64_t first_backward(size_t first, size_t end) const {
    int64_t at = -1;
    for (size_t i = first; i < end; ++i) {
      const ParamProfile& p = profile_.params[i];
      const int64_t mine = p.bwd_first >= 0 ? p.bwd_first : p.gradient;
      if (mine >= 0 && (at < 0 || mine < at)) at = mine;
    }
    return at;
  }

  const StepProfile& profile_;
  size_t first_, end_;
  std::vector<int64_t> elements_;
};

}  // namespace

Schedule greedy_units(const StepProfile& profile, int64_t budget_bytes) {
  Schedule schedule;
  const auto last = static_cast<int64_t>(profile.live[0].size()) - 1;
  const double headroom = static_cast<double>(budget_bytes - profile.state_bytes - profile.most_live(0, last));
  const size_t n = profile.params.size();
  double cover_forward = 0, cover_backward = 0, bytes_before = 0, gather_before = 0, gather_open = 0;
  for (size_t first = 0; first < n;) {
    size_t end = first + 1;
    std::string reason = "the last parameter";
    for (; end < n; ++end) {
      const Range grown(profile, first, end + 1);
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
    const Range closed(profile, first, end);
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

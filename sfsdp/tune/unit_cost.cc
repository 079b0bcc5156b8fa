// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/unit_cost.h"

#include "sfsdp/mesh/chunk.h"

namespace sfsdp::tune {

UnitCost::UnitCost(const StepProfile& profile, size_t first, size_t end)
    : profile_(profile), first_(first), end_(end), elements_(profile.kinds.size()) {
  for (size_t i = first; i < end; ++i) elements_[profile.params[i].kind] += profile.params[i].elements;
}

template <class CostOf>
double UnitCost::over_kinds(CostOf of) const {
  double sum = 0;
  for (size_t k = 0; k < elements_.size(); ++k)
    if (elements_[k] > 0)
      sum += of(profile_.kinds[k],
                static_cast<double>(round_up(elements_[k], profile_.kinds[k].ranks * profile_.kinds[k].alignment)));
  return sum;
}

double UnitCost::gather() const {
  return over_kinds([&](const KindProfile& k, double n) {
    return k.gathered > 0 ? cost::collective_seconds("all_gather", n * k.gathered, k.gather_group, profile_.machine)
                          : 0;
  });
}

double UnitCost::reduce() const {
  return over_kinds([&](const KindProfile& k, double n) {
    return k.reduction.empty() ? 0
                               : cost::collective_seconds(k.reduction, n * k.reduced, k.reduce_group, profile_.machine);
  });
}

double UnitCost::gathered_bytes() const {
  return over_kinds([](const KindProfile& k, double n) { return n * k.gathered; });
}

double UnitCost::reduced_bytes() const {
  return over_kinds([](const KindProfile& k, double n) { return k.reduction.empty() ? 0 : n * k.reduced; });
}

double UnitCost::forward_compute() const {
  const auto& params = profile_.params;
  const int64_t from = params[first_].fwd_first;
  const int64_t to = end_ < params.size() ? params[end_].fwd_first : profile_.backward_begin;
  return from < 0 || to < from ? 0 : profile_.seconds_between(from, to);
}

double UnitCost::backward_compute() const {
  double seconds = 0;
  for (size_t i = first_; i < end_; ++i) seconds += profile_.params[i].backward_seconds;
  return seconds;
}

}  // namespace sfsdp::tune

// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <functional>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/tune/estimate.h"
#include "sfsdp/tune/search.h"

namespace sfsdp::tune {
namespace {

constexpr int64_t kMemoryCost = 8;    // evaluations that one with memory counts for
constexpr double kWorthwhile = 1e-9;  // relative gain below which nothing changes

// The least in flight.
constexpr passes::UnitSchedule kLean = {.forward_depth = 0, .backward_depth = 0, .sink_depth = 0};

passes::Side other(passes::Side side) {
  return side == passes::Side::Before ? passes::Side::After : passes::Side::Before;
}

class Search {
 public:
  Search(const StepProfile& profile, const SearchOptions& options)
      : profile_(profile), estimator_(profile), options_(options), left_(options.evaluations) {}

  Schedule run(const std::vector<Schedule>& starts) {
    SFSDP_CHECK(!starts.empty() && !profile_.params.empty(), "nothing to search");
    std::vector<Scored> scored;
    for (const Schedule& start : with_cuts(starts))
      for (const bool keep_all : {false, true}) {
        if (keep_all && !options_.choose_reshard) continue;
        Schedule schedule = start;
        if (keep_all)
          for (UnitChoice& unit : schedule) unit.keep = true;
        scored.push_back({std::move(schedule), {}});
        scored.back().estimate = estimator_.estimate(scored.back().schedule);
        --left_;
      }
    std::ranges::stable_sort(scored, [&](const Scored& a, const Scored& b) { return better(a.estimate, b.estimate); });
    std::optional<Scored> best;
    constexpr size_t kClimbs = 3;
    const int64_t share = left_ / static_cast<int64_t>(kClimbs);
    for (size_t i = 0; i < std::min(kClimbs, scored.size()); ++i) {
      left_ = share;
      climb(scored[i]);
      if (!best || better(scored[i].estimate, best->estimate)) best = scored[i];
    }
    for (UnitChoice& unit : best->schedule)
      if (unit.reason == Reason::Named) unit.reason = Reason::Search;
    return best->schedule;
  }

 private:
  struct Scored {
    Schedule schedule;
    Estimate estimate;
  };

  bool fits(const Estimate& p) const { return p.peak_bytes <= options_.budget_bytes; }
  bool better(const Estimate& a, const Estimate& b) const {
    if (fits(a) != fits(b)) return fits(a);
    if (!fits(a) && a.peak_bytes != b.peak_bytes) return a.peak_bytes < b.peak_bytes;
    return a.seconds < b.seconds * (1 - kWorthwhile);
  }

  // The starts, and cuts into units of about equal compute.
  std::vector<Schedule> with_cuts(std::vector<Schedule> starts) const {
    const size_t n = profile_.params.size();
    for (size_t units = 1; units <= n; units = std::max(units + 1, units * 3 / 2)) {
      Schedule schedule;
      size_t first = 0;
      for (size_t u = 0; u < units && first < n; ++u) {
        size_t end = std::max(first + 1, n * (u + 1) / units);
        schedule.push_back({.first = first, .end = end, .order = profile_.order});
        first = end;
      }
      starts.push_back(std::move(schedule));
    }
    return starts;
  }

  // Takes candidate_ for the current one if it is better.
  bool take(Scored& now) {
    too_large_ = false;
    if (left_-- <= 0) return false;
    // Time first, which most candidates lose by.
    if (fits(now.estimate) && estimator_.seconds(candidate_) >= now.estimate.seconds * (1 - kWorthwhile)) return false;
    left_ -= kMemoryCost;
    const Estimate p = estimator_.estimate(candidate_);
    too_large_ = !fits(p);
    if (!better(p, now.estimate)) return false;
    now = {candidate_, p};
    return true;
  }

  using Change = std::function<void(UnitChoice&)>;
  std::vector<Change> changes() const {
    std::vector<Change> all = {
        [](UnitChoice& u) { u.order.forward = other(u.order.forward); },
        [](UnitChoice& u) { u.order.backward = other(u.order.backward); },
        [](UnitChoice& u) { u.order.sink = other(u.order.sink); },
        [](UnitChoice& u) { ++u.order.forward_depth; },
        [](UnitChoice& u) { ++u.order.backward_depth; },
        [](UnitChoice& u) { ++u.order.sink_depth; },
        [](UnitChoice& u) { u.order.forward_depth = std::max<int64_t>(u.order.forward_depth - 1, 0); },
        [](UnitChoice& u) { u.order.backward_depth = std::max<int64_t>(u.order.backward_depth - 1, 0); },
        [](UnitChoice& u) { u.order.sink_depth = std::max<int64_t>(u.order.sink_depth - 1, 1); },
    };
    if (options_.choose_reshard) all.push_back([](UnitChoice& u) { u.keep = !u.keep; });
    return all;
  }

  void climb(Scored& now) {
    bool improved = true;
    while (improved && left_ > 0) {
      improved = false;
      for (const Change& change : changes()) {  // of all units at once
        candidate_ = now.schedule;
        for (UnitChoice& unit : candidate_) change(unit);
        improved |= take(now);
      }
      for (size_t u = 0; u < now.schedule.size() && left_ > 0; ++u) {
        for (const Change& change : changes()) {
          candidate_ = now.schedule;
          change(candidate_[u]);
          improved |= take(now);
        }
      }
      improved |= move_borders(now);
    }
  }

  // A unit and the next as three of equal length: on the way there, both a split and a moved border may be slower.
  bool part_two_in_three(Scored& now, size_t u) {
    if (u + 1 >= now.schedule.size()) return false;
    const size_t first = now.schedule[u].first, length = now.schedule[u + 1].end - first;
    if (length < 3) return false;
    candidate_ = now.schedule;
    UnitChoice middle = candidate_[u];
    candidate_[u].end = middle.first = first + (length + 2) / 3;
    candidate_[u + 1].first = middle.end = first + (2 * length + 2) / 3;
    candidate_.insert(candidate_.begin() + static_cast<std::ptrdiff_t>(u) + 1, middle);
    return take(now);
  }

  bool move_borders(Scored& now) {
    bool improved = false;
    for (size_t u = 0; u < now.schedule.size() && left_ > 0; ++u) {
      if (u + 1 < now.schedule.size()) {
        candidate_ = now.schedule;
        candidate_[u].end = candidate_[u + 1].end;
        candidate_.erase(candidate_.begin() + static_cast<std::ptrdiff_t>(u) + 1);
        improved |= take(now);
        if (too_large_) {  // with less in flight it may fit; what of that is worth its memory is found again
          for (UnitChoice& unit : candidate_) unit.order = kLean;
          improved |= take(now);
        }
      }
      if (u + 1 < now.schedule.size())
        for (const int64_t by : {1, -1, 4, -4}) {
          const Schedule& units = now.schedule;
          const int64_t border = static_cast<int64_t>(units[u].end) + by;
          if (border <= static_cast<int64_t>(units[u].first) || border >= static_cast<int64_t>(units[u + 1].end))
            continue;
          candidate_ = units;
          candidate_[u].end = candidate_[u + 1].first = static_cast<size_t>(border);
          improved |= take(now);
        }
      improved |= part_two_in_three(now, u);
      const UnitChoice unit = now.schedule[u];
      const size_t length = unit.end - unit.first;
      const size_t step = std::max<size_t>(length / 8, 1);
      for (size_t cut = unit.first + step; cut < unit.end; cut += step) {
        candidate_ = now.schedule;
        UnitChoice rest = unit;
        rest.first = candidate_[u].end = cut;
        candidate_.insert(candidate_.begin() + static_cast<std::ptrdiff_t>(u) + 1, rest);
        if (take(now)) {
          improved = true;
          break;
        }
      }
    }
    return improved;
  }

  const StepProfile& profile_;
  Estimator estimator_;
  SearchOptions options_;
  int64_t left_;            // evaluations that may still be made
  bool too_large_ = false;  // the last that was tried: faster, but it does not fit
  Schedule candidate_;      // what is tried; one for all, as allocating them costs more than timing them
};

}  // namespace

Schedule search_units(const StepProfile& profile, const std::vector<Schedule>& starts, const SearchOptions& options) {
  return Search(profile, options).run(starts);
}

}  // namespace sfsdp::tune

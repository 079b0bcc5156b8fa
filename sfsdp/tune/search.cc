// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/search.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/tune/simulated.h"
#include "sfsdp/tune/unit_memory.h"

namespace sfsdp::tune {
namespace {

constexpr double kWorthwhile = 1e-9;  // relative gain below which nothing changes

// The least in flight.
constexpr passes::UnitSchedule kLean = {.forward_depth = 0, .backward_depth = 0, .sink_depth = 0};

passes::Side other(passes::Side side) {
  return side == passes::Side::Before ? passes::Side::After : passes::Side::Before;
}

// State over time: `now_` is the best that was simulated; candidates are made of it, and take its place where they are better.
class Search {
 public:
  Search(const StepProfile& profile, const SearchOptions& options, const Simulate& simulate)
      : profile_(profile), options_(options), simulate_(simulate), left_(options.simulations) {}

  Schedule run(const std::vector<Schedule>& starts) {
    SFSDP_CHECK(!starts.empty() && !profile_.params.empty(), "nothing to search");
    now_ = starts[0];
    tried_ = {now_};
    figures_ = simulate_(now_);
    too_large_ = !fits(figures_);
    for (size_t i = 0; i < starts.size(); ++i) {
      if (i > 0) attempt(starts[i]);
      if (too_large_) make_lean(starts[i]);
    }
    if (options_.choose_reshard)
      for (const Schedule& start : starts) keep_more(start);
    bool improved = true;
    while (improved && left_ > 0) {
      improved = change_all();
      improved |= change_each();
      improved |= move_borders();
    }
    for (UnitChoice& unit : now_)
      if (unit.reason == Reason::Named) unit.reason = Reason::Search;
    return now_;
  }

 private:
  using Change = std::function<void(UnitChoice&)>;

  bool fits(const passes::StepFigures& figures) const {
    return static_cast<double>(figures.peak_bytes) <= options_.memory;
  }

  // Takes a candidate that is better.
  bool attempt(Schedule candidate) {
    if (left_ <= 0 || std::ranges::find(tried_, candidate) != tried_.end()) return false;
    --left_;
    tried_.push_back(candidate);
    passes::StepFigures figures = simulate_(candidate);
    too_large_ = !fits(figures);
    passes::StepFigures bar = figures_;
    if (fits(bar)) bar.seconds *= 1 - kWorthwhile;
    if (!is_better(figures, bar, options_.memory)) return false;
    now_ = std::move(candidate);
    figures_ = figures;
    return true;
  }

  // A start that does not fit, with less in flight: at first where backward begins, as most is alive there.
  void make_lean(Schedule schedule) {
    for (UnitChoice& unit : schedule) unit.keep = false;
    if (too_large_) attempt(schedule);
    for (size_t part = 32; part > 0 && too_large_; part /= 2) {
      for (size_t u = schedule.size() - (schedule.size() + part - 1) / part; u < schedule.size(); ++u)
        schedule[u].order = kLean;
      attempt(schedule);
    }
  }

  // Kept units from the last one on: as many as what is alive allows, and fewer where addresses lose too much.
  void keep_more(Schedule schedule) {
    auto budget = static_cast<int64_t>(options_.memory);
    for (int turn = 0; turn < 2 && left_ > 0; ++turn) {
      for (UnitChoice& unit : schedule) unit.keep = false;
      keep_what_fits(profile_, schedule, budget);
      attempt(schedule);
      if (!too_large_) return;
      budget = static_cast<int64_t>(0.95 * options_.memory);
    }
  }

  std::vector<Change> changes() const {
    std::vector<Change> all = {
        [](UnitChoice& u) { ++u.order.forward_depth; },
        [](UnitChoice& u) { ++u.order.backward_depth; },
        [](UnitChoice& u) { ++u.order.sink_depth; },
        [](UnitChoice& u) { u.order.forward = other(u.order.forward); },
        [](UnitChoice& u) { u.order.backward = other(u.order.backward); },
        [](UnitChoice& u) { u.order.sink = other(u.order.sink); },
        [](UnitChoice& u) { u.order.forward_depth = std::max<int64_t>(u.order.forward_depth - 1, 0); },
        [](UnitChoice& u) { u.order.backward_depth = std::max<int64_t>(u.order.backward_depth - 1, 0); },
        [](UnitChoice& u) { u.order.sink_depth = std::max<int64_t>(u.order.sink_depth - 1, 1); },
    };
    if (options_.choose_reshard) all.push_back([](UnitChoice& u) { u.keep = !u.keep; });
    return all;
  }

  // Two neighbours as one, each unit as two, and the changes, of all units at once: what a large step has simulations for.
  bool change_all() {
    bool improved = false;
    Schedule merged, halved;
    for (size_t u = 0; u < now_.size(); ++u) {
      UnitChoice unit = now_[u], half = unit;
      if (u % 2 == 1)
        merged.back().end = unit.end;
      else
        merged.push_back(unit);
      half.end = unit.first + (unit.end - unit.first + 1) / 2;
      unit.first = half.end;
      halved.push_back(half);
      if (unit.first < unit.end) halved.push_back(unit);
    }
    if (merged.size() < now_.size()) improved |= attempt(std::move(merged));
    if (!improved && halved.size() > now_.size()) improved |= attempt(std::move(halved));
    for (const Change& change : changes()) {
      Schedule candidate = now_;
      for (UnitChoice& unit : candidate) change(unit);
      if (candidate != now_) improved |= attempt(std::move(candidate));
    }
    return improved;
  }

  bool change_each() {
    bool improved = false;
    for (size_t u = 0; u < now_.size(); ++u)
      for (const Change& change : changes()) {
        if (left_ <= 0) return improved;
        Schedule candidate = now_;
        change(candidate[u]);
        if (candidate != now_) improved |= attempt(std::move(candidate));
      }
    return improved;
  }

  // A unit and the next as three of equal length: on the way there, both a split and a moved border may be slower.
  bool part_two_in_three(size_t u) {
    if (u + 1 >= now_.size()) return false;
    const size_t first = now_[u].first, length = now_[u + 1].end - first;
    if (length < 3) return false;
    Schedule candidate = now_;
    UnitChoice middle = candidate[u];
    candidate[u].end = middle.first = first + (length + 2) / 3;
    candidate[u + 1].first = middle.end = first + (2 * length + 2) / 3;
    candidate.insert(candidate.begin() + static_cast<std::ptrdiff_t>(u) + 1, middle);
    return attempt(std::move(candidate));
  }

  bool merge_with_next(size_t u) {
    Schedule candidate = now_;
    candidate[u].end = candidate[u + 1].end;
    candidate.erase(candidate.begin() + static_cast<std::ptrdiff_t>(u) + 1);
    if (attempt(candidate)) return true;
    if (!too_large_) return false;
    // With less in flight it may fit; what of that is worth its memory is found again.
    for (UnitChoice& unit : candidate) unit.order = kLean;
    return attempt(std::move(candidate));
  }

  bool move_border(size_t u, int64_t by) {
    const int64_t border = static_cast<int64_t>(now_[u].end) + by;
    if (border <= static_cast<int64_t>(now_[u].first) || border >= static_cast<int64_t>(now_[u + 1].end)) return false;
    Schedule candidate = now_;
    candidate[u].end = candidate[u + 1].first = static_cast<size_t>(border);
    return attempt(std::move(candidate));
  }

  bool cut(size_t u) {
    const UnitChoice unit = now_[u];
    const size_t step = std::max<size_t>((unit.end - unit.first) / 8, 1);
    for (size_t at = unit.first + step; at < unit.end && left_ > 0; at += step) {
      Schedule candidate = now_;
      UnitChoice rest = unit;
      rest.first = candidate[u].end = at;
      candidate.insert(candidate.begin() + static_cast<std::ptrdiff_t>(u) + 1, rest);
      if (attempt(std::move(candidate))) return true;
    }
    return false;
  }

  bool move_borders() {
    bool improved = false;
    for (size_t u = 0; u < now_.size() && left_ > 0; ++u) {
      if (u + 1 < now_.size()) improved |= merge_with_next(u);
      for (const int64_t by : {1, -1, 4, -4})
        if (u + 1 < now_.size()) improved |= move_border(u, by);
      improved |= part_two_in_three(u);
      improved |= cut(u);
    }
    return improved;
  }

  const StepProfile& profile_;
  const SearchOptions options_;
  const Simulate& simulate_;
  int64_t left_;  // simulations
  Schedule now_;
  passes::StepFigures figures_;  // of now_
  bool too_large_ = false;       // the last that was simulated does not fit
  std::vector<Schedule> tried_;
};

}  // namespace

Schedule search_units(const StepProfile& profile, const std::vector<Schedule>& starts, const SearchOptions& options,
                      const Simulate& simulate) {
  return Search(profile, options, simulate).run(starts);
}

}  // namespace sfsdp::tune

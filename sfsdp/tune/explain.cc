// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/explain.h"

#include <algorithm>
#include <functional>

#include "sfsdp/base/check.h"
#include "sfsdp/tune/unit_cost.h"

namespace sfsdp::tune {
namespace {

bool is_under(const std::string& name, const std::string& path) {
  return path.empty() || name == path || (name.starts_with(path) && name[path.size()] == '.');
}

class Explainer {
 public:
  Explainer(const UnitTrials& trials, const Schedule& schedule)
      : trials_(trials), profile_(trials.profile()), schedule_(schedule), now_(trials.simulate(schedule)) {}

  UnitExplanation explain(size_t u) {
    const UnitChoice& unit = schedule_[u];
    const UnitCost cost(profile_, unit.first, unit.end);
    UnitExplanation e;
    e.first = profile_.params[unit.first].name;
    e.last = profile_.params[unit.end - 1].name;
    e.params = unit.end - unit.first;
    e.reason = std::string(to_string(unit.reason));
    e.gathered_bytes = cost.gathered_bytes();
    e.gather_seconds = cost.gather();
    e.reduced_bytes = cost.reduced_bytes();
    e.reduce_seconds = cost.reduce();
    if (u > 0) e.forward_cover = UnitCost(profile_, schedule_[u - 1].first, schedule_[u - 1].end).forward_compute();
    if (u + 1 < schedule_.size())
      e.backward_cover = UnitCost(profile_, schedule_[u + 1].first, schedule_[u + 1].end).backward_compute();
    const auto add = [&](const std::string& change, const std::function<void(Schedule&)>& apply) {
      Schedule changed = schedule_;
      apply(changed);
      const passes::StepFigures p = trials_.simulate(changed);
      e.alternatives.push_back({change, p.seconds - now_.seconds, p.peak_bytes - now_.peak_bytes});
    };
    const auto at = [u](Schedule& s) -> UnitChoice& { return s[u]; };
    if (u + 1 < schedule_.size())
      add("merged with the next unit", [&](Schedule& s) {
        s[u].end = s[u + 1].end;
        s.erase(s.begin() + static_cast<std::ptrdiff_t>(u) + 1);
      });
    if (e.params > 1)
      add("cut in half", [&](Schedule& s) {
        UnitChoice second = s[u];
        second.first = s[u].end = unit.first + e.params / 2;
        s.insert(s.begin() + static_cast<std::ptrdiff_t>(u) + 1, second);
      });
    add(unit.keep ? "gathered again for backward" : "kept gathered until backward",
        [&](Schedule& s) { at(s).keep = !at(s).keep; });
    add("gathered one unit earlier in forward", [&](Schedule& s) { ++at(s).order.forward_depth; });
    add("gathered one unit earlier in backward", [&](Schedule& s) { ++at(s).order.backward_depth; });
    add("its reduction waited for one unit later", [&](Schedule& s) { ++at(s).order.sink_depth; });
    return e;
  }

 private:
  const UnitTrials& trials_;
  const StepProfile& profile_;
  const Schedule& schedule_;
  const passes::StepFigures now_;
};

}  // namespace

std::vector<UnitExplanation> explain_units(const UnitTrials& trials, const Schedule& schedule,
                                           const std::string& path) {
  const StepProfile& profile = trials.profile();
  Explainer explainer(trials, schedule);
  std::vector<UnitExplanation> found;
  for (size_t u = 0; u < schedule.size(); ++u)
    for (size_t i = schedule[u].first; i < schedule[u].end; ++i)
      if (is_under(profile.params[i].name, path)) {
        found.push_back(explainer.explain(u));
        break;
      }
  return found;
}

}  // namespace sfsdp::tune

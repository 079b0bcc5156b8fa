// SPDX-License-Identifier: BSD-3-Clause
// Which parameters form a unit, by cost: greedily as the paper has it, or by search on the profile.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sfsdp/tune/profile.h"

namespace sfsdp::tune {

// The paper's greedy rule. Walking through the parameters as forward reads them, a parameter joins the open unit as long
// as, with P the unit before it and Q the one before P,
//   forward:   T_gather(unit) <= compute of P in forward, which the gather starts under;
//   backward:  T_reduce(unit) + T_gather(Q) <= compute of P in backward, under which both run;
//   memory:    what two neighbouring units hold at once fits into `budget_bytes` beside all else that the step needs.
// Forward and backward share the units, as storage is flat, so one walk obeys both conditions.
// Source: SimpleFSDP, arXiv:2411.00284, section on auto-wrapping.
//   budget_bytes: of the device, state included
Schedule greedy_units(const StepProfile& profile, int64_t budget_bytes);

// Units given by name: parameters next to each other in the profile with equal names form one.
//   unit_of: the unit of a parameter, by its name
Schedule named_units(const StepProfile& profile, const std::function<std::string(const std::string&)>& unit_of);

struct SearchOptions {
  int64_t budget_bytes = 0;
  int64_t evaluations = 20000;  // at most
  // Whether each unit may be kept gathered between forward and backward.
  bool choose_reshard = true;
};

// The best schedule found by hill climbing from several starts: borders, prefetch and sink variants, and what stays
// gathered, each per unit. Deterministic. Never worse on the profile than the starts that fit the budget; if none fits,
// the one that needs least memory.
Schedule search_units(const StepProfile& profile, const std::vector<Schedule>& starts, const SearchOptions& options);

}  // namespace sfsdp::tune

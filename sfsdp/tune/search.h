// SPDX-License-Identifier: BSD-3-Clause
// Which parameters form a unit, by cost: greedily as the paper has it, or by search in the simulator.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sfsdp/passes/pass_report.h"
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

// The step that a schedule makes: time, and peak with addresses.
using Simulate = std::function<passes::StepFigures(const Schedule&)>;

struct SearchOptions {
  double memory = 0;         // bytes that a rank may use, state included
  int64_t simulations = 20;  // at most
  // Whether each unit may be kept gathered between forward and backward.
  bool choose_reshard = true;
};

// The best schedule that hill climbing finds from several starts: borders, prefetch and sink variants, and what stays
// gathered, of all units at once, then per unit as long as simulations are left. Deterministic. Never worse than the starts
// that fit the memory; if none fits, the one that needs least.
Schedule search_units(const StepProfile& profile, const std::vector<Schedule>& starts, const SearchOptions& options,
                      const Simulate& simulate);

}  // namespace sfsdp::tune

// SPDX-License-Identifier: BSD-3-Clause
// The plan machine held against the interpreter: what the tests of both ask.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sfsdp/testing/machine/plan_machine.h"

namespace sfsdp::plan::machine {

// Sets what a step is given, by rank.
using Edit = std::function<void(std::vector<Inputs>& by_rank)>;

// What the plan's graph means.
struct Reference {
  std::vector<std::vector<Inputs>> batches;
  std::vector<ir::interp::RunResult> steps;
};
// Two steps on made-up numbers, the second from the state that the first one leaves.
Reference interpret(const ir::Graph& graph, const Edit& edit = nullptr);

// What the machine finds under one schedule; "" where it computes what the graph means, bit for bit.
std::string faults_of(const StepPlan& plan, const Reference& reference, uint64_t schedule);

// The plan's text, read back, under schedules 0, 1, ...: "" or the first fault; also where print and parse differ.
std::string faults_under(const StepPlan& plan, uint64_t schedules, const Edit& edit = nullptr);

}  // namespace sfsdp::plan::machine

// SPDX-License-Identifier: BSD-3-Clause
// The plan machine held against the interpreter, bit for bit: what the tests of both ask.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sfsdp/testing/machine/plan_machine.h"

namespace sfsdp::plan::machine {

// Sets what a step is given, by rank.
using Edit = std::function<void(std::vector<Inputs>& by_rank)>;

struct Comparison {
  uint64_t first_schedule = 0, schedules = 20;
  int64_t steps = 2;
  ir::interp::OtherKernels other = nullptr;  // of ops that testing/interp has no kernel for; from two threads
  Edit edit = nullptr;
};

// What the machine does otherwise under the first schedule that shows it: a fault, or the number of a result, in words; ""
// where it computes what the graph means. Batches and state are made up: state not negative, as moments and variances are.
//   throws: UserError for an opcode without a kernel, or where no number of a result is finite
std::string find_difference(const StepPlan& plan, const Comparison& comparison = {});
inline std::string faults_under(const StepPlan& plan, uint64_t schedules, const Edit& edit = nullptr) {
  return find_difference(plan, {.schedules = schedules, .edit = edit});
}

}  // namespace sfsdp::plan::machine

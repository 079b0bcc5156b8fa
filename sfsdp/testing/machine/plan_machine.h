// SPDX-License-Identifier: BSD-3-Clause
// Executes a plan as its text stands there, on all ranks of its mesh: bytes in regions at the plan's addresses and strides, lanes
// that wait for each other by edges alone, in an order that a seed draws, tasks of several lanes and ranks interleaved. It
// knows no lifetimes and asks no access map, so that what the planner and its verifier believe together shows here. From the graph
// it takes which ops are one kernel, and which values that kernel alone reads, so that they need not reach memory.
//
// A kernel's results reach memory in parts (torn_kernel.h), and what it reads meanwhile must be what it read when it began. A
// collective reads and writes part by part too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/plan/places.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/testing/interp/interpreter.h"
#include "sfsdp/testing/machine/prepared.h"
#include "sfsdp/testing/machine/rank.h"

namespace sfsdp::plan::machine {

using ir::interp::Inputs, ir::interp::RankResult;

struct Options {
  uint64_t schedule = 0;  // what the order of tasks and the parts of results are drawn from
  double lr = 0.125;      // of the first step; each one after it has half of the one before
  uint64_t seed = ir::interp::HostNumbers().seed;
  ir::interp::OtherKernels other = nullptr;  // of ops that testing/interp has no kernel for
  // By rank, what another plan on the same state has left (Outcome::memory): state and window are that, and no batch gives state.
  // Empty: memory that no program wrote.
  std::vector<Memory> memory = {};
  // Keeps what was measured of the plan's ops for further runs of the same plan; nullptr: it is measured in each.
  MeasuredOps* measured = nullptr;
};

struct Outcome {
  std::vector<std::vector<RankResult>> steps;  // by step and rank: as interp::RunResult::ranks
  std::vector<std::string> faults;  // what no machine could run, or what a kernel read over itself; at most ten
  std::vector<Memory> memory;       // by rank
};

// batches: by step, then rank; names as of interp::run. State and constants are those of the first step.
//   throws: UserError for an opcode without a kernel, a missing input
Outcome run(const StepPlan& plan, const std::vector<std::vector<Inputs>>& batches, const Options& options = {});
// The same of a plan that is prepared for as many steps.
Outcome run(const Prepared& prepared, const std::vector<std::vector<Inputs>>& batches, const Options& options = {});

}  // namespace sfsdp::plan::machine

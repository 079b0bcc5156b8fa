// SPDX-License-Identifier: BSD-3-Clause
// What the kernels and the collectives of a plan take, measured in its own steps.
#pragma once

#include <vector>

#include "sfsdp/cost/measured.h"
#include "sfsdp/train/job.h"

namespace sfsdp::comm {
class Communicator;
class CommWorld;
}  // namespace sfsdp::comm

namespace sfsdp::tools {

// The micro-batches of a step, on ordinary numbers.
std::vector<Batch> ordinary_batches(const train::CompiledJob& job);

struct PlanTimes {
  std::vector<cost::MeasuredKernel> kernels;          // each that the plan has, once
  std::vector<cost::MeasuredCollective> collectives;  // likewise
  double step_seconds = 0;                            // of a step that is not measured, on the rank that is slowest
};

// Runs steps of the job on numbers of its example, in turns with and without a clock at each kernel. A kernel takes the mean over
// ranks and places in the plan of its median over steps; a collective what it takes the rank that comes last, whom no other keeps
// waiting. All ranks call it together and get the same.
//   world, group: of all ranks; null: one alone
//   seconds: about as long; three steps of either kind at least
PlanTimes time_plan(const train::CompiledJob& job, comm::CommWorld* world, comm::Communicator* group, double seconds);

}  // namespace sfsdp::tools

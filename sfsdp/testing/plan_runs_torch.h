// SPDX-License-Identifier: BSD-3-Clause
// A plan alone, without the program that it was compiled for, run by the planned executor on made-up numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/comm/communicator.h"
#include "sfsdp/device/device.h"
#include "sfsdp/plan/copied_bytes.h"
#include "sfsdp/plan/step_plan.h"

namespace sfsdp::testing {

// What a rank has after two steps.
struct RankOutcome {
  std::vector<at::Tensor> results;  // of both
  std::map<std::string, at::Tensor, std::less<>> state;
  plan::CopiedBytes copied;  // into buckets and out of them, in the last one
};
// Compares results and state.
bool same_bits(const RankOutcome& a, const RankOutcome& b);

// Other numbers for each seed; 0 or 1 where they are no floating point: what those name is there in every table and loss.
at::Tensor made_up(const ir::Type& type, double seed);

// Two steps of the world's rank, from made-up parameters and moments and counters that are 0.
//   batches:     the micro-batches of step 0 or 1
//   make_device: none: all lanes on this thread
RankOutcome run_plan(const plan::StepPlan& plan, const std::vector<at::Tensor>& constants, comm::CommWorld& world,
                     const std::function<std::vector<std::vector<at::Tensor>>(int64_t step)>& batches,
                     const device::MakeDevice& make_device);

}  // namespace sfsdp::testing

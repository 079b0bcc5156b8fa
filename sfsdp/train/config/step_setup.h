// SPDX-License-Identifier: BSD-3-Clause
// From a config and a number of ranks to what step::complete_step takes beside the capture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/compile/complete_step.h"
#include "sfsdp/train/config/config.h"
#include "sfsdp/train/config/config_resolve.h"

namespace sfsdp::train {

struct StepSetup {
  Strategy strategy;
  BatchShares shares;
  step::StepOptions options;
};

MixedPrecisionPolicy mixed_precision_of(const Training& training);

// Throws UserError where mesh, batch or options do not fit.
StepSetup step_setup(const JobConfig& config, int64_t world_size);

// activation_checkpoint.mode = as_exported: the blocks that an archive says are checkpointed are computed again, none where
// it says nothing. Any other mode: as it is.
void follow_checkpoints(StepSetup& setup, const JobConfig& config, const std::vector<std::string>& blocks);

}  // namespace sfsdp::train

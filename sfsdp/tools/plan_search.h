// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp plan --search`: the fastest ways to train a global batch on a machine.
#pragma once

#include <iosfwd>

#include "sfsdp/tools/captures.h"
#include "sfsdp/tools/commands.h"

namespace sfsdp::tools {

// Varies the mesh (dp_replicate × dp_shard × ep × cp × tp), ZeRO stage, micro-batch, recomputation and reshard of a config on request.world
// ranks; its other keys hold, and so do degrees of model axes that the command line gives, or the config above 1. All are estimated (tune/scaled_step.h), the best are simulated and printed, with what each
// waits for and why others lost.
//   throws: UserError without --machine, and for a global batch that the ranks cannot share
int run_search(const Request& request, const CaptureJob& capture, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools

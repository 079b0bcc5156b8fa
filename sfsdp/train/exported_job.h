// SPDX-License-Identifier: BSD-3-Clause
// A job whose model is an archive of torch.export.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/train/job.h"

namespace sfsdp::train {

// Module, loss and the order of the batch's tensors; no example and no program yet.
//   throws: UserError naming model.inputs, loss or logits, what the archive has, and what was expected; a precision that the
//   archive was not exported in
CompiledJob exported_job(const JobConfig& config);

// Copies this rank's part of each parameter and buffer from the archive; other bytes are not read, where the file holds a
// tensor row by row. Returns lines for the log. Not a collective call, but each rank must make it.
//   adapters: the run adds some, which are not in the archive
//   throws: UserError naming tensor and file: cut meanwhile, or with values that are not finite
std::vector<std::string> load_exported_weights(const exported::Program& program, Step& step, bool adapters);

}  // namespace sfsdp::train

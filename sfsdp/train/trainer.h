// SPDX-License-Identifier: BSD-3-Clause
// The training loop: config in, log lines and metrics out.
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace sfsdp::train {

// `sfsdp train --job.config_file F --section.key value …` on this rank; rank and world size from torchrun's environment,
// one rank without it. Errors go to `err`, naming the rank.
//   returns: the exit code: 0; kExitStopped after a signal and a checkpoint, 128 + the signal without one; 2 for a UserError
//            before the first step, 1 for any other error
int run_train(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::train

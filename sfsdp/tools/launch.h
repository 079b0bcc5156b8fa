// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp launch -n N [--log-rank 0,1] [--master-port P] [--exec PATH] -- args…`: N ranks on this host.
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace sfsdp::tools {

// Starts N copies of this binary (or PATH) with torchrun's environment and the arguments behind `--`. Output lines of
// the ranks in --log-rank (all, if not given) go to `out`, error lines of all ranks to `err`, prefixed with the rank.
// When a rank fails, the others are ended (SIGTERM, after 5 s SIGKILL); returns its exit code, or 128 + signal. Ranks
// never outlive the launcher. Returns 2 for wrong arguments.
int run_launch(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools

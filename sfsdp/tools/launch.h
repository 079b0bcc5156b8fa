// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp launch -n N [--max-restarts K] [--log-rank 0,1] -- args…`: N ranks on this host.
#pragma once

#include <cstdint>
#include <iosfwd>

#include "sfsdp/tools/commands.h"

namespace sfsdp::tools {

inline constexpr int64_t kMaxRanks = 1024;  // on one host

// Starts N copies of this binary (or PATH) with the arguments after `--`, torchrun's environment and no standard
// input. Output lines of the ranks in --log-rank (all, if not given) go to `out`, prefixed with the rank if there are
// several; error lines of all ranks to `err`.
//   --max-restarts: when a rank fails, the whole group is ended and started again, on a new port and with the next
//            TORCHELASTIC_RESTART_COUNT; the ranks go on from their newest checkpoint. Not after kExitUserError, after a
//            signal, or after three failures in a row at one step
//   returns: 0; kExitStopped (75) if the ranks have saved and stopped, which a signal asks of them; the exit code of the
//            first rank that failed, or 128 + the signal that ended it, the others having got SIGTERM and after 5 s SIGKILL;
//            128 + SIGINT, SIGTERM, SIGHUP or SIGUSR1, if that came, was forwarded and ended the ranks within --grace (a
//            second one kills at once); 1 if the ranks could not be started; 2 for wrong arguments, with a message on err
// Ranks die with the thread that calls this, whatever ends it; what a rank has started dies with the rank. One call at
// a time per process, as it handles the process's signals.
int run_launch(const Request& request, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools

// SPDX-License-Identifier: BSD-3-Clause
// What a rank's exit code says, to `sfsdp launch`, Slurm and Kubernetes. docs/faults.md has the table for users.
#pragma once

namespace sfsdp {

inline constexpr int kExitFailed = 1;
inline constexpr int kExitUserError = 2;  // what it was given cannot be taken: it would fail again
// Stopped by a signal after a checkpoint: run it again and it goes on. EX_TEMPFAIL of sysexits.h, "try again later".
inline constexpr int kExitStopped = 75;

}  // namespace sfsdp

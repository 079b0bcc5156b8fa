// SPDX-License-Identifier: BSD-3-Clause
// SIGTERM, SIGINT and SIGUSR1 (Slurm's --signal=USR1@120) ask a run to save and end. A signal reaches some ranks, or ranks in
// different steps; what to do about it must be the same on all.
#pragma once

#include <array>
#include <csignal>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::train {

// While it lives, these signals are noted instead of ending the process. A second SIGTERM or SIGINT does end it, if it comes a
// second after the first: a launcher and the batch system may both pass one on. One at a time per process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // A collective call of all ranks, after each step: the ranks exchange what each has noted, so all get the same answer.
  //   world: null for a rank alone
  //   returns: 0, or a signal that at least one rank has got; the highest number if there are several
  int agreed(comm::CommWorld* world) const;

 private:
  static constexpr std::array kHandled = {SIGTERM, SIGINT, SIGUSR1};
  std::array<struct sigaction, kHandled.size()> before_{};
};

}  // namespace sfsdp::train

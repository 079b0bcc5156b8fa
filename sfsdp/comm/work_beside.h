// SPDX-License-Identifier: BSD-3-Clause
// Work of ranks that may last longer than a collective's patience, such as writing to a slow disk.
#pragma once

#include <functional>
#include <string>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::comm {

// Runs `work` on a thread of its own, while the ranks tell each other once a second that they are at it: one that takes
// longer than a collective's patience is not taken for lost. Returns when all ranks have done theirs. A collective call.
//   ranks:  a group that nothing else uses meanwhile
//   work:   must not throw, and calls no collective of that group
//   what:   names the exchange in errors: "checkpoint progress"
//   throws: CommError, once this rank's work has ended, where another rank is lost
void work_beside(Communicator& ranks, const std::function<void()>& work, const std::string& what);

}  // namespace sfsdp::comm

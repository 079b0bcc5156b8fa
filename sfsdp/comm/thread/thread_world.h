// SPDX-License-Identifier: BSD-3-Clause
// Ranks as threads of one process: the communicator of tests. Every collective is checked to be the same one on all
// ranks, and sums run in rank order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::comm {

// One world per rank, 1 to 128 of them; rank r's is for thread r. They may be destroyed in any order; who still waits
// for a rank whose world is gone gets a CommError at once. A rank whose call fails leaves it when no other reads its
// memory any more.
//   timeout_ms: how long a rank waits for the others before it throws CommError naming the missing ones
//   throws:     UserError for another number of ranks
std::vector<std::unique_ptr<CommWorld>> make_thread_worlds(int world_size, int64_t timeout_ms = 60000);

}  // namespace sfsdp::comm

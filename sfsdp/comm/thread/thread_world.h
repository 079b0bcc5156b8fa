// SPDX-License-Identifier: BSD-3-Clause
// Ranks as threads of one process: the communicator of tests. Every collective is checked to be the same one on all
// ranks, and sums run in rank order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::comm {

// One world per rank; rank r's is for thread r. They may be destroyed in any order.
//   timeout_ms: how long a rank waits for the others before it throws CommError naming the missing ones
std::vector<std::unique_ptr<CommWorld>> make_thread_worlds(int world_size, int64_t timeout_ms = 60000);

// Ends all waiting calls of all ranks of the worlds made together with `world`.
void abort_thread_worlds(CommWorld& world, const std::string& reason);

}  // namespace sfsdp::comm

// SPDX-License-Identifier: BSD-3-Clause
// Runs a function on n ranks that are threads of this process: tests of a sharded step without a launcher.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::testing {

// Calls body(world) on `world_size` threads, 1 to 128 of them; world.rank() tells which one it is. Returns when all have.
//   timeout_ms: after which a rank that waits for the others gives up
//   throws:     the first error of any rank: the cause, not the CommErrors of peers whose calls it ended
void run_ranks(int world_size, const std::function<void(comm::CommWorld&)>& body, int64_t timeout_ms = 60000);

// The same on worlds of any kind; rank r's is made on thread r, as some can only be made by all ranks at once.
using MakeWorld = std::function<std::unique_ptr<comm::CommWorld>(int rank)>;
void run_ranks_on(int world_size, const MakeWorld& make_world, const std::function<void(comm::CommWorld&)>& body);

}  // namespace sfsdp::testing

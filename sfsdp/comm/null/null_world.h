// SPDX-License-Identifier: BSD-3-Clause
// One rank of a world whose other ranks do not exist: for dry runs, which look at sizes and times of one rank.
#pragma once

#include <memory>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::comm {

// Collectives check their sizes and return at once, with data as if all ranks held what this one does, sums left out:
// an all_gather repeats `in`, a reduction keeps this rank's part. Nothing waits, so timeouts do nothing.
std::unique_ptr<CommWorld> make_null_world(int world_size, int rank = 0);

}  // namespace sfsdp::comm

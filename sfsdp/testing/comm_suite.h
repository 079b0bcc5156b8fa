// SPDX-License-Identifier: BSD-3-Clause
// What every communicator must do, as bodies for run_ranks: the same ones for threads and processes, so that their results
// are the same bits. They throw on the first wrong byte, on whichever rank.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::testing {

// Every collective on all dtypes and operations, for 0, 1, 7 and 1000 elements, and in place where that is allowed,
// compared with sums computed one by one in rank order.
void check_collectives(comm::CommWorld& world);
// Large transfers, whose messages do not fit into the buffers of a socket.
void check_large(comm::CommWorld& world);
// Data in windows, on all ranks and on some of them, of sizes below and above what goes another way.
void check_windows(comm::CommWorld& world);
// Groups of some of the ranks, in an order of their own, several at a time. Needs an even world_size.
void check_groups(comm::CommWorld& world);
// Exchanges between pairs of ranks and of uneven parts: of nothing, of a few bytes, where one rank has everything, at odd
// places and in windows.
void check_exchanges(comm::CommWorld& world);
// The same of several MiB.
void check_large_exchanges(comm::CommWorld& world);
// From 2 ranks: pairs, roots or counts of the last rank are not those of the others; all get a CommError that names both.
void check_exchange_mismatches(comm::CommWorld& world);
// Two groups, each used by a thread of its own on each rank, at once.
void check_two_threads(comm::CommWorld& world);
// From 2 ranks: the last rank makes another call; all get a CommError that names both.
enum class Mismatch { Kind, Bytes, DType, Op, Name };
void check_mismatch(comm::CommWorld& world, Mismatch mismatch);
// From 2 ranks: the last rank makes a call of another name, of as many bytes, after `same` calls that were alike; all get a
// CommError that says so. Once all ranks send each other something, once one sends and goes on.
void check_late_mismatch(comm::CommWorld& world, uint64_t same);
// From 2 ranks: the last rank never makes its third call, in two groups. All others get a CommError that names it and what it finished.
void check_late_peer(comm::CommWorld& world);

// The message of the CommError that `call` throws; throws if it throws none.
std::string comm_error_of(const std::function<void()>& call);

}  // namespace sfsdp::testing

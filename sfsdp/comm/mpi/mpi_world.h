// SPDX-License-Identifier: BSD-3-Clause
// Ranks that mpirun or srun has started: they meet through MPI and exchange their data over it, on any network that it knows.
// Sums are ours, in rank order, so the bits are those of every other way.
#pragma once

#include <memory>

#include "sfsdp/comm/communicator.h"
#include "sfsdp/comm/flight_recorder.h"
#include "sfsdp/comm/mpi/mpi_library.h"

namespace sfsdp::comm {

// A collective call: all processes of the job make their worlds in the same order. A message fails after timeout_ms in
// which none is done; a rank that does not come or is stopped is named as across hosts over TCP (watch.h).
//   recorder: null: nothing is recorded
//   throws:   CommError if rank 0 does not answer
std::unique_ptr<CommWorld> make_mpi_world(std::shared_ptr<Mpi> mpi, int64_t timeout_ms,
                                          std::shared_ptr<FlightRecorder> recorder = nullptr);

}  // namespace sfsdp::comm

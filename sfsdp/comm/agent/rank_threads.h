// SPDX-License-Identifier: BSD-3-Clause
// Threads of a rank that compute, LibTorch's, where its launcher says nothing of them. Torch-free header.
#pragma once

#include <string>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::comm {

// Gives this rank its share of the cores that the ranks of its host may use, as sfsdp launch does: mpirun and srun start ranks each of
// which takes all of them. Before anything is computed. Without effect where the user has set OMP_NUM_THREADS.
//   returns: what to say of it; "": nothing, there is no other rank on this host, or the user has chosen
std::string share_cores(const CommWorld& world);

}  // namespace sfsdp::comm

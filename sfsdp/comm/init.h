// SPDX-License-Identifier: BSD-3-Clause
// The ranks of this run, however it was started.
#pragma once

#include <memory>

#include "sfsdp/comm/communicator.h"

namespace sfsdp {

// Started by `sfsdp launch` or torchrun (RANK and WORLD_SIZE are set), or by mpirun or srun: blocks until all ranks are there.
// Else: a world of this process alone. It must outlive every Step that is given it. An exception that nobody catches in a launched rank is
// then told as "error on rank 1: …", unless the program has a terminate handler of its own. Ranks of mpirun and srun get as many of
// LibTorch's threads as each has cores on its host, unless OMP_NUM_THREADS says how many.
//   throws: UserError naming an environment variable that is missing or wrong; CommError naming ranks that do not come
std::unique_ptr<comm::CommWorld> init();

}  // namespace sfsdp

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/agent/rank_threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>

#include "sfsdp/base/check.h"
#include "sfsdp/base/cores.h"

namespace sfsdp::comm {

std::string share_cores(const CommWorld& world) {
  if (std::getenv("OMP_NUM_THREADS") || world.ranks_of_host() <= 1) return "";
  const int64_t share = share_of_cores(world.cores_of_host(), world.ranks_of_host());
  at::set_num_threads(static_cast<int>(std::min(share, usable_cores())));  // the launcher may have bound it to fewer
  return concat(world.ranks_of_host(), " ranks share ", world.cores_of_host(),
                " cores of this host: ", at::get_num_threads(),
                " computing on each; OMP_NUM_THREADS sets another number");
}

}  // namespace sfsdp::comm

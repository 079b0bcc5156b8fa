// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/cores.h"

#include <algorithm>
#include <array>
#include <thread>

namespace sfsdp {

std::vector<int> cores_of(pid_t process) {
  std::array<cpu_set_t, 64>
      sets{};  // a set that is smaller than the kernel's is refused: this one has room for 65,536 cores
  if (sched_getaffinity(process, sizeof sets, sets.data()) != 0) return {};
  std::vector<int> cores;
  for (size_t core = 0; core < 8 * sizeof sets; ++core)
    if (CPU_ISSET_S(core, sizeof sets, sets.data())) cores.push_back(static_cast<int>(core));
  return cores;
}

int64_t usable_cores() {
  const auto count = std::ssize(cores_of(0));
  return std::max<int64_t>(1, count > 0 ? count : std::thread::hardware_concurrency());
}

int64_t share_of_cores(int64_t cores, int64_t ranks) {
  return std::max<int64_t>(1, cores / std::max<int64_t>(1, ranks));
}

}  // namespace sfsdp

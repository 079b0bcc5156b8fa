// SPDX-License-Identifier: BSD-3-Clause
// How many cores there are to compute on: those of the machine may be fewer for a process that a container or a launcher has bound.
#pragma once

#include <sched.h>

#include <cstdint>
#include <vector>

namespace sfsdp {

// The numbers of the cores that a process may run on, 0: the calling thread; empty where the system does not say.
std::vector<int> cores_of(pid_t process);

// How many the calling thread may run on, at least 1; those of the machine where the system does not say.
int64_t usable_cores();

// The cores of one rank: an equal share of those that the ranks of its host may use together, but at least 1.
//   cores, ranks: of the host
int64_t share_of_cores(int64_t cores, int64_t ranks);

}  // namespace sfsdp

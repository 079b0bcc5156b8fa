// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

// Checkpoints of one rank against dd on the same disk, and what asynchronous saving keeps a step waiting against one copy
// of the state. Each round measures all of them, one after the other. Needs twice `mib` of memory and of disk.
//   folder: on the disk to be measured; what is written there is removed
void measure_checkpoints(int64_t mib, int64_t rounds, const std::string& folder);

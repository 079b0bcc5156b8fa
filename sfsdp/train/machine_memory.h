// SPDX-License-Identifier: BSD-3-Clause
// Whether the plan of a step fits into this machine, asked before anything of it is allocated. Without the question the
// system would end a rank in the midst of its first step, without a word.
#pragma once

#include <cstdint>
#include <string>

namespace sfsdp::train {

struct MachineMemory {
  int64_t ram_bytes = 0;  // of the machine, or of the control group that this process is in, if that has less
  int64_t swap_bytes = 0;
  int64_t available_bytes = 0;  // of both, not in use now
};

// 0 for what cannot be read.
//   proc, groups: where the system shows these; other folders are for tests
MachineMemory read_machine_memory(const std::string& proc = "/proc", const std::string& groups = "/sys/fs/cgroup");

// The plan's peak of all ranks of this machine against its memory. A plan is what the allocator's peak will be to 0.1 MiB
// (docs/benchmarks.md), and all of it is written to in the first step: above RAM and swap together no run can live.
//   planned_bytes: of one rank; local_ranks: of this machine, LOCAL_WORLD_SIZE
//   returns: a line for the log where it is more than is available now; "" where it fits
//   throws:  UserError with the numbers and cures where it is more than there is
std::string check_planned_memory(int64_t planned_bytes, int64_t local_ranks, const MachineMemory& machine);

}  // namespace sfsdp::train

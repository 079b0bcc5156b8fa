// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "sfsdp/comm/communicator.h"

// How fast the ranks of a world exchange data, all at once: the time of a call without data and with 8 bytes; of a gather, a
// scattered and a whole reduction of float32 of 1, 16 and 64 MiB in all, from buffers in windows and elsewhere; beside copies of as
// many bytes in private memory. Rates count what is read and written. Rank 0 prints medians and the range of 9 rounds.
void measure_collectives(sfsdp::comm::CommWorld& world);

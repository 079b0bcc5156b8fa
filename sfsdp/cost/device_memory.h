// SPDX-License-Identifier: BSD-3-Clause
// What of a device's memory no tensor can have, and what it takes to give memory back to the driver.
#pragma once

#include <cstdint>
#include <vector>

#include "sfsdp/cost/machine.h"
#include "sfsdp/mesh/device_mesh.h"

namespace sfsdp::cost {

// Bytes of the driver's context with the kernels that it has loaded, and of the buffers of a mesh's communicators: one for each axis
// in use, and one for all of several. 0 on a processor.
int64_t bytes_outside(const Machine& machine, const std::vector<MeshAxis>& mesh);

// Seconds of the host, while the device has nothing to do, for memory that is given back to the driver or asked of it. A caching
// allocator that is full does both in each step, after it has waited for the device (c10/cuda/CUDACachingAllocator.cpp).
//   bytes: given back, and asked for
double moving_seconds(double bytes);

}  // namespace sfsdp::cost

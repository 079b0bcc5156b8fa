// SPDX-License-Identifier: BSD-3-Clause
// The compute lane on the host's thread, each other lane on a thread of its own, so that collectives run under kernels. It needs a
// core for them beside those that compute.
#pragma once

#include <cstddef>
#include <memory>

#include "sfsdp/device/device.h"

namespace sfsdp::device {

// Its destructor waits until what has been issued is over.
std::unique_ptr<Device> make_threaded_device(size_t lanes, size_t events);

}  // namespace sfsdp::device

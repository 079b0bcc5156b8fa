// SPDX-License-Identifier: BSD-3-Clause
// All lanes on the host's thread: a kernel is over when it has been issued, so that events have happened and waits are nothing. A
// collective blocks. The device of machines whose cores are all busy.
#pragma once

#include <memory>

#include "sfsdp/device/device.h"

namespace sfsdp::device {

std::unique_ptr<Device> make_inline_device();

}  // namespace sfsdp::device

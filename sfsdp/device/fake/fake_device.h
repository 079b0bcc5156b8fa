// SPDX-License-Identifier: BSD-3-Clause
// A device for tests: its memory is the host's, and its lanes run one kernel at a time in an order that a seed draws, as late or as
// early as events allow. It looks for two lanes that use the same bytes with no event between them, and for kernels that touch bytes
// of which they say nothing. All ranks of a group must have the same schedule: a collective then begins on all of them before another
// one does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "sfsdp/device/device.h"

namespace sfsdp::device {

struct FakeOptions {
  uint64_t schedule = 0;
  // Whether memory of which a kernel does not say that it reads or writes it has other bytes while it runs, and is compared afterwards.
  // Takes the time of three copies of all memory for each kernel.
  bool hides_memory = false;
  std::function<void(const std::string&)> on_fault;  // what no device may be asked to do; on the host's thread
};

std::unique_ptr<Device> make_fake_device(size_t lanes, size_t events, FakeOptions options);

}  // namespace sfsdp::device

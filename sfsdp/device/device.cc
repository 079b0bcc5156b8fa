// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/device/device.h"

#include <cstring>
#include <utility>

namespace sfsdp::device {

size_t Device::capture(std::vector<Command> commands) {
  captured_.push_back(std::move(commands));
  return captured_.size() - 1;
}

void Device::replay(size_t number, const Turn& turn) {
  for (const Command& command : captured(number)) issue(command, turn);
}

void Device::upload(std::byte* to, const std::byte* from, int64_t bytes) {
  spend(Spent::ForwardBackward);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace sfsdp::device

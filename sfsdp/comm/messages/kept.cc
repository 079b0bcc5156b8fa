// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/messages/kept.h"

#include <mutex>
#include <utility>
#include <vector>

namespace sfsdp::comm {

void keep_for_ever(std::shared_ptr<void> memory) {
  struct Kept {
    std::mutex mutex;
    std::vector<std::shared_ptr<void>> memory;
  };
  static Kept& kept = *new Kept;  // not destroyed at the end either, when threads of the transport may still run
  const std::lock_guard lock(kept.mutex);
  kept.memory.push_back(std::move(memory));
}

}  // namespace sfsdp::comm

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/shm/windows.h"

namespace sfsdp::comm {

std::shared_ptr<GrowingMemory> Windows::make(int64_t reserved_bytes) {
  auto memory = std::make_shared<GrowingMemory>(GrowingMemory::Kind::Shared, reserved_bytes);
  const std::lock_guard lock(mutex_);
  std::erase_if(windows_, [](const Window& w) { return w.memory.expired(); });
  windows_.push_back({memory->begin(), memory->begin() + memory->reserved(), memory->id(), memory});
  return memory;
}

std::optional<SharedPlace> Windows::find(std::span<const std::byte> bytes) const {
  const std::lock_guard lock(mutex_);
  for (const Window& w : windows_)
    if (bytes.data() >= w.begin && bytes.data() + bytes.size() <= w.end && !w.memory.expired())
      return SharedPlace{w.id, static_cast<uint64_t>(bytes.data() - w.begin)};
  return std::nullopt;
}

}  // namespace sfsdp::comm

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/memory_counter.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>

#include <atomic>
#include <cstring>

namespace sfsdp::exec {
namespace {

std::atomic<int64_t> allocated = 0, most = 0;

void add(int64_t bytes) {
  const int64_t now = allocated += bytes;
  int64_t before = most;
  while (before < now && !most.compare_exchange_weak(before, now)) {
  }
}

// LibTorch's own allocator, with each block's size in front of it. The room for it keeps the block's alignment.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return inner_->allocate(0);
    auto* block = static_cast<std::byte*>(inner_->raw_allocate(bytes + kRoom));
    std::memcpy(block, &bytes, sizeof bytes);
    add(static_cast<int64_t>(bytes));
    return {block + kRoom, block + kRoom, &free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static constexpr size_t kRoom = c10::gAlignment;
  static void free(void* data) {
    if (!data) return;
    std::byte* block = static_cast<std::byte*>(data) - kRoom;
    size_t bytes = 0;
    std::memcpy(&bytes, block, sizeof bytes);
    add(-static_cast<int64_t>(bytes));
    inner_->raw_deallocate(block);
  }
  static inline c10::Allocator* const inner_ = c10::GetDefaultCPUAllocator();
};

}  // namespace

void count_memory() {
  static CountingAllocator allocator;
  static const bool installed = [] {
    c10::SetCPUAllocator(&allocator, /*priority=*/1);
    return true;
  }();
  static_cast<void>(installed);
}

int64_t allocated_bytes() { return allocated; }
int64_t most_allocated_bytes() { return most; }
void restart_most_allocated() { most = allocated.load(); }
void count_region(int64_t bytes) { add(bytes); }

}  // namespace sfsdp::exec

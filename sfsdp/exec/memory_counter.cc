// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/memory_counter.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>

#include <atomic>
#include <new>
#include <utility>

#include "sfsdp/exec/workspace.h"

namespace sfsdp::exec {
namespace {

std::atomic<int64_t> allocated = 0, most = 0;
std::atomic<int64_t> asked_times = 0, asked_bytes = 0;

void add(int64_t bytes) {
  const int64_t now = allocated += bytes;
  int64_t before = most;
  while (before < now && !most.compare_exchange_weak(before, now)) {
  }
}

thread_local Workspace* workspace = nullptr;  // of the kernel that this thread runs

// In front of each block.
struct Head {
  size_t bytes;
  Workspace* from;  // null: the system
};

// LibTorch's own allocator, with a head in front of each block. The room for it keeps the block's alignment.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return inner_->allocate(0);
    Workspace* from = workspace;
    std::byte* block = from ? from->allocate(bytes + kRoom) : nullptr;
    if (!block) {
      from = nullptr;
      block = static_cast<std::byte*>(inner_->raw_allocate(bytes + kRoom));
      add(static_cast<int64_t>(bytes));
      ++asked_times;
      asked_bytes += static_cast<int64_t>(bytes);
    }
    new (block) Head{bytes, from};
    return {block + kRoom, block + kRoom, &free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static constexpr size_t kRoom = c10::gAlignment;
  static_assert(sizeof(Head) <= kRoom && kRoom <= Workspace::kAlignment);
  static void free(void* data) {
    if (!data) return;
    std::byte* block = static_cast<std::byte*>(data) - kRoom;
    const Head head = *std::launder(reinterpret_cast<const Head*>(block));
    if (head.from) return head.from->free(block);
    add(-static_cast<int64_t>(head.bytes));
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
Allocations all_allocations() { return {asked_times, asked_bytes}; }
UseWorkspace::UseWorkspace(Workspace* of) : before_(std::exchange(workspace, of)) {}
UseWorkspace::~UseWorkspace() { workspace = before_; }
void count_region(int64_t bytes) { add(bytes); }

}  // namespace sfsdp::exec

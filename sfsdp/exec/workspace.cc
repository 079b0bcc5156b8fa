// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/workspace.h"

#include <algorithm>

#include "sfsdp/base/check.h"

namespace sfsdp::exec {

void Workspace::set_memory(std::byte* begin, size_t bytes) {
  const std::lock_guard lock(mutex_);
  SFSDP_CHECK(blocks_.empty() || begin == memory_, "a workspace moves while it is used");
  memory_ = begin;
  bytes_ = std::max(bytes_, bytes);
}

std::byte* Workspace::allocate(size_t bytes) {
  if (bytes > bytes_) return nullptr;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard lock(mutex_);
  size_t begin = 0;
  auto next = blocks_.begin();
  for (; next != blocks_.end() && next->begin - begin < bytes; ++next) begin = next->end;
  if (next == blocks_.end() && bytes_ - begin < bytes) return nullptr;
  blocks_.insert(next, {begin, begin + bytes});
  return memory_ + begin;
}

void Workspace::free(const std::byte* block) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::lower_bound(blocks_, static_cast<size_t>(block - memory_), {}, &Block::begin);
  SFSDP_CHECK(found != blocks_.end() && memory_ + found->begin == block, "no block of the workspace");
  blocks_.erase(found);
}

size_t Workspace::blocks() const {
  const std::lock_guard lock(mutex_);
  return blocks_.size();
}

}  // namespace sfsdp::exec

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/caching_allocator.h"

#include <algorithm>
#include <iterator>

#include "sfsdp/base/check.h"

namespace sfsdp::plan {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kSmallest = 512, kSmall = kMiB;                       // of a block
constexpr int64_t kSmallSegment = 2 * kMiB, kLargeSegment = 20 * kMiB;  // and pages of expandable segments
constexpr int64_t kOwnSegment = 10 * kMiB, kOwnRounding = 2 * kMiB;     // a block that has a segment of its own
constexpr size_t kNone = static_cast<size_t>(-1);

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

CachingAllocator::Handle CachingAllocator::allocate(int64_t bytes, int stream) {
  SFSDP_CHECK(bytes >= 0, "allocate ", bytes, " bytes");
  const int64_t rounded = round_up(std::max<int64_t>(bytes, 1), kSmallest);
  const Pool pool{stream, rounded <= kSmall};
  size_t block = find(pool, rounded);
  if (block == kNone) block = grow(pool, rounded);
  take(block, rounded);
  allocated_ += blocks_[block].bytes;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  count_use(blocks_[block], 1);
  return block;
}

void CachingAllocator::free(Handle handle) {
  Block& block = blocks_.at(handle);
  SFSDP_CHECK(block.in_use, "block ", handle, " is freed twice");
  block.in_use = false;
  allocated_ -= block.bytes;
  count_use(block, -1);
  const auto here = at_.find({block.segment, block.address});
  size_t first = handle;
  if (here != at_.begin()) {
    const size_t before = std::prev(here)->second;
    if (blocks_[before].segment == block.segment && !blocks_[before].in_use) {
      free_[block.pool].erase({blocks_[before].bytes, blocks_[before].address, before});
      join_next(before);
      first = before;
    }
  }
  const auto next = std::next(at_.find({blocks_[first].segment, blocks_[first].address}));
  if (next != at_.end() && next->first.first == blocks_[first].segment && !blocks_[next->second].in_use) {
    free_[block.pool].erase({blocks_[next->second].bytes, blocks_[next->second].address, next->second});
    join_next(first);
  }
  free_[block.pool].insert({blocks_[first].bytes, blocks_[first].address, first});
}

int64_t CachingAllocator::reserved(int stream) const {
  const auto found = reserved_by_stream_.find(stream);
  return found == reserved_by_stream_.end() ? 0 : found->second;
}

// The smallest that is large enough. The free end of an expandable segment counts as endless: it comes last.
size_t CachingAllocator::find(const Pool& pool, int64_t bytes) const {
  const auto found = free_.find(pool);
  if (found == free_.end()) return kNone;
  const auto expandable = expandable_.find(pool);
  size_t end = kNone;
  for (auto it = found->second.lower_bound({bytes, 0, 0}); it != found->second.end(); ++it) {
    const Block& block = blocks_[std::get<2>(*it)];
    if (expandable == expandable_.end() || block.address + block.bytes != expandable->second.second)
      return std::get<2>(*it);
    end = std::get<2>(*it);
  }
  return end;
}

size_t CachingAllocator::grow(const Pool& pool, int64_t bytes) {
  if (segments_ == Segments::Expandable) return expand(pool, bytes);
  const int64_t segment = pool.small            ? kSmallSegment
                          : bytes < kOwnSegment ? kLargeSegment
                                                : round_up(bytes, kOwnRounding);
  reserved_ += segment;
  reserved_by_stream_[pool.stream] += segment;
  made_.push_back({.page = segment, .uses = {0}});
  const size_t block = add(pool, 0, segment, made_.size() - 1);
  free_[pool].insert({segment, 0, block});
  return block;
}

// Pages are added to the segment's end until its last block, if that is free, is large enough.
size_t CachingAllocator::expand(const Pool& pool, int64_t bytes) {
  const int64_t page = pool.small ? kSmallSegment : kLargeSegment;
  const auto [found, is_new] = expandable_.try_emplace(pool, made_.size(), 0);
  if (is_new) made_.push_back({.page = page, .uses = {}});
  auto& [segment, end] = found->second;
  size_t last = kNone;
  if (end > 0) {
    last = std::prev(at_.lower_bound({segment, end}))->second;
    if (blocks_[last].in_use) last = kNone;
  }
  const int64_t there = last == kNone ? 0 : blocks_[last].bytes;
  const int64_t more = round_up(bytes - there, page);
  reserved_ += more;
  reserved_by_stream_[pool.stream] += more;
  if (last == kNone) {
    last = add(pool, end, more, segment);
  } else {
    free_[pool].erase({blocks_[last].bytes, blocks_[last].address, last});
    blocks_[last].bytes += more;
  }
  end += more;
  made_[segment].uses.resize(static_cast<size_t>(end / page));
  free_[pool].insert({blocks_[last].bytes, blocks_[last].address, last});
  return last;
}

size_t CachingAllocator::add(const Pool& pool, int64_t address, int64_t bytes, size_t segment) {
  blocks_.push_back({pool, address, bytes, segment, false});
  at_.emplace(std::pair(segment, address), blocks_.size() - 1);
  return blocks_.size() - 1;
}

// Takes a free block out of the list; what is left of it after the first `bytes` becomes a block of its own.
void CachingAllocator::take(size_t index, int64_t bytes) {
  const Pool pool = blocks_[index].pool;
  free_[pool].erase({blocks_[index].bytes, blocks_[index].address, index});
  const int64_t left = blocks_[index].bytes - bytes;
  const bool splits = pool.small || segments_ == Segments::Expandable ? left >= kSmallest : left > kSmall;
  if (splits) {
    blocks_[index].bytes = bytes;
    const size_t rest = add(pool, blocks_[index].address + bytes, left, blocks_[index].segment);
    free_[pool].insert({left, blocks_[rest].address, rest});
  }
  blocks_[index].in_use = true;
}

void CachingAllocator::count_use(const Block& block, int64_t change) {
  Segment& segment = made_[block.segment];
  for (int64_t page = block.address / segment.page; page * segment.page < block.address + block.bytes; ++page) {
    int64_t& uses = segment.uses.at(static_cast<size_t>(page));
    if (uses == 0) held_ += segment.page;
    uses += change;
    if (uses == 0) held_ -= segment.page;
  }
  peak_held_ = std::max(peak_held_, held_);
}

void CachingAllocator::join_next(size_t index) {
  const auto next = std::next(at_.find({blocks_[index].segment, blocks_[index].address}));
  blocks_[index].bytes += blocks_[next->second].bytes;
  at_.erase(next);
}

}  // namespace sfsdp::plan

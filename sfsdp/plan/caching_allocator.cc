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
    if (blocks_[before].segment == block.segment && is_cached(before)) {
      free_[block.pool].erase({blocks_[before].bytes, blocks_[before].address, before});
      join_next(before);
      first = before;
    }
  }
  const auto next = std::next(at_.find({blocks_[first].segment, blocks_[first].address}));
  if (next != at_.end() && next->first.first == blocks_[first].segment && is_cached(next->second)) {
    free_[block.pool].erase({blocks_[next->second].bytes, blocks_[next->second].address, next->second});
    join_next(first);
  }
  free_[block.pool].insert({blocks_[first].bytes, blocks_[first].address, first});
}

int64_t CachingAllocator::reserved(int stream) const {
  const auto found = reserved_by_stream_.find(stream);
  return found == reserved_by_stream_.end() ? 0 : found->second;
}

size_t CachingAllocator::next_of(const Block& block) const {
  const auto next = at_.find({block.segment, block.address + block.bytes});
  return next == at_.end() ? kNone : next->second;
}

// What a free block can grow to where it lies: by the hole after it, at the end of an expandable segment without end.
int64_t CachingAllocator::with_hole(const Block& block) const {
  const auto expandable = expandable_.find(block.pool);
  if (expandable == expandable_.end()) return block.bytes;
  const size_t next = next_of(block);
  if (next == kNone) return kEndless;
  return block.bytes + (blocks_[next].mapped ? 0 : blocks_[next].bytes);
}

// The smallest that is large enough, counted with the hole after it: what can grow is left for what needs that.
size_t CachingAllocator::find(const Pool& pool, int64_t bytes) const {
  const auto found = free_.find(pool);
  if (found == free_.end()) return kNone;
  auto best = found->second.lower_bound({bytes, 0, 0});
  if (best == found->second.end()) return kNone;
  for (auto next = std::next(best); next != found->second.end(); best = next++)
    if (with_hole(blocks_[std::get<2>(*next)]) >= with_hole(blocks_[std::get<2>(*best)])) break;
  return std::get<2>(*best);
}

void CachingAllocator::reserve(const Pool& pool, int64_t bytes) {
  reserved_ += bytes;
  reserved_by_stream_[pool.stream] += bytes;
  if (bytes > 0)
    traffic_.asked_bytes += bytes;
  else
    traffic_.given_bytes -= bytes;
}

size_t CachingAllocator::grow(const Pool& pool, int64_t bytes) {
  if (segments_ == Segments::Expandable) return expand(pool, bytes);
  const int64_t segment = pool.small            ? kSmallSegment
                          : bytes < kOwnSegment ? kLargeSegment
                                                : round_up(bytes, kOwnRounding);
  if (segment > room_ - reserved_) give_back();
  reserve(pool, segment);
  made_.push_back({.page = segment, .uses = {0}});
  const size_t block = add(pool, 0, segment, made_.size() - 1);
  free_[pool].insert({segment, 0, block});
  return block;
}

// Pages are added to the segment, in its holes or at its end, until a free block of it is large enough.
size_t CachingAllocator::expand(const Pool& pool, int64_t bytes) {
  if (expandable_.try_emplace(pool, made_.size(), 0).second)
    made_.push_back({.page = pool.small ? kSmallSegment : kLargeSegment, .uses = {}});
  size_t start = first_with_room(pool, bytes);
  if (missing(pool, start, bytes) > room_ - reserved_) {
    give_back();
    start = first_with_room(pool, bytes);
  }
  return map(pool, start, bytes);
}

// The lowest hole, or free block before a hole, from which on nothing is in use for so many bytes; else the free block at the end, if
// there is one.
size_t CachingAllocator::first_with_room(const Pool& pool, int64_t bytes) const {
  const auto& [segment, end] = expandable_.at(pool);
  const auto before = [&, segment = segment](int64_t address) {
    const auto at = at_.lower_bound({segment, address});
    return at == at_.begin() || std::prev(at)->first.first != segment ? kNone : std::prev(at)->second;
  };
  if (const auto holes = holes_.find(pool); holes != holes_.end()) {
    for (const auto& [address, hole] : holes->second) {
      const size_t left = before(address);
      const size_t start = is_cached(left) ? left : hole;
      int64_t there = 0;
      size_t block = start;
      for (; block != kNone && !blocks_[block].in_use && there < bytes; block = next_of(blocks_[block]))
        there += blocks_[block].bytes;
      if (there >= bytes || block == kNone) return start;
    }
  }
  const size_t last = before(end);
  return is_cached(last) ? last : kNone;
}

// Bytes that `map` asks of the device.
int64_t CachingAllocator::missing(const Pool& pool, size_t start, int64_t bytes) const {
  const int64_t page = made_[expandable_.at(pool).first].page;
  int64_t there = 0, more = 0;
  for (size_t block = start; there < bytes && block != kNone; block = next_of(blocks_[block])) {
    const int64_t taken =
        blocks_[block].mapped ? blocks_[block].bytes : std::min(blocks_[block].bytes, round_up(bytes - there, page));
    if (!blocks_[block].mapped) more += taken;
    there += taken;
  }
  return more + round_up(std::max<int64_t>(bytes - there, 0), page);
}

// Makes one free block of so many bytes from `start` on, kNone: from the segment's end on. Memory is asked for by pages, in holes
// and at the end; what is free after them joins.
size_t CachingAllocator::map(const Pool& pool, size_t start, int64_t bytes) {
  const size_t segment = expandable_.at(pool).first;
  if (start == kNone) {
    const int64_t end = expandable_.at(pool).second;
    const int64_t more = map_end(pool, bytes);
    start = add(pool, end, more, segment);
  } else if (blocks_[start].mapped) {
    free_[pool].erase({blocks_[start].bytes, blocks_[start].address, start});
  } else {
    const int64_t address = blocks_[start].address;
    const int64_t taken = map_hole(start, bytes);
    start = add(pool, address, taken, segment);
  }
  while (blocks_[start].bytes < bytes || is_cached(next_of(blocks_[start]))) {
    const size_t next = next_of(blocks_[start]);
    if (next == kNone) {
      blocks_[start].bytes += map_end(pool, bytes - blocks_[start].bytes);
    } else if (blocks_[next].mapped) {
      free_[pool].erase({blocks_[next].bytes, blocks_[next].address, next});
      join_next(start);
    } else {
      blocks_[start].bytes += map_hole(next, bytes - blocks_[start].bytes);
    }
  }
  free_[pool].insert({blocks_[start].bytes, blocks_[start].address, start});
  return start;
}

// Asks for at least `bytes` at the end of a segment. Returns how much.
int64_t CachingAllocator::map_end(const Pool& pool, int64_t bytes) {
  auto& [segment, end] = expandable_.at(pool);
  const int64_t page = made_[segment].page, more = round_up(bytes, page);
  reserve(pool, more);
  end += more;
  made_[segment].uses.resize(static_cast<size_t>(end / page));
  return more;
}

// Asks for memory from the begin of a hole on, at least `bytes` if it has them. Returns how much; the hole is what is left after that.
int64_t CachingAllocator::map_hole(size_t hole, int64_t bytes) {
  const Block was = blocks_[hole];
  const int64_t taken = std::min(was.bytes, round_up(bytes, made_[was.segment].page));
  reserve(was.pool, taken);
  holes_[was.pool].erase(was.address);
  at_.erase({was.segment, was.address});
  if (taken < was.bytes) add_hole(was.pool, was.address + taken, was.bytes - taken, was.segment);
  return taken;
}

void CachingAllocator::add_hole(const Pool& pool, int64_t address, int64_t bytes, size_t segment) {
  const size_t hole = add(pool, address, bytes, segment);
  blocks_[hole].mapped = false;
  holes_[pool].emplace(address, hole);
}

// All fixed segments, and all pages of expandable ones, that no tensor has a part of.
void CachingAllocator::give_back() {
  ++traffic_.retries;
  std::vector<size_t> cached;
  for (const auto& [pool, free] : free_)
    for (const auto& entry : free) cached.push_back(std::get<2>(entry));
  for (const size_t block : cached) give_back_pages(block);
}

// Whole pages of a free block become a hole, which joins holes beside it; at the end of a segment they shorten it.
void CachingAllocator::give_back_pages(size_t block) {
  const Block was = blocks_[block];
  const int64_t page = made_[was.segment].page, stop = was.address + was.bytes;
  const int64_t first = round_up(was.address, page), last = stop / page * page;
  if (first >= last) return;
  reserve(was.pool, first - last);
  free_[was.pool].erase({was.bytes, was.address, block});
  at_.erase({was.segment, was.address});
  const auto add_free = [&](int64_t from, int64_t to) {
    if (from < to) free_[was.pool].insert({to - from, from, add(was.pool, from, to - from, was.segment)});
  };
  add_free(was.address, first);
  add_free(last, stop);
  const auto expandable = expandable_.find(was.pool);
  if (expandable == expandable_.end()) return;
  std::map<int64_t, size_t>& holes = holes_[was.pool];
  int64_t from = first, to = last;
  const auto take_over = [&](size_t hole) {
    from = std::min(from, blocks_[hole].address);
    to = std::max(to, blocks_[hole].address + blocks_[hole].bytes);
    at_.erase({was.segment, blocks_[hole].address});
    holes.erase(blocks_[hole].address);
  };
  if (const auto after = holes.find(last); after != holes.end()) take_over(after->second);
  if (const auto before = holes.lower_bound(first); before != holes.begin()) {
    const size_t left = std::prev(before)->second;
    if (blocks_[left].address + blocks_[left].bytes == first) take_over(left);
  }
  if (to == expandable->second.second)
    expandable->second.second = from;
  else
    add_hole(was.pool, from, to - from, was.segment);
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

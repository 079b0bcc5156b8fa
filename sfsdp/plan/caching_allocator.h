// SPDX-License-Identifier: BSD-3-Clause
// How much device memory PyTorch's caching allocator holds for a program of allocations and frees: what is *reserved* is
// what a trainer's log shows and what has to fit, what is *allocated* is the sum of the tensors that are alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace sfsdp::plan {

// The rules of c10/cuda/CUDACachingAllocator.cpp, without events between streams and garbage collection:
//   - a size is rounded up to 512 bytes; at most 1 MiB comes from the small pool, more from the large one;
//   - memory belongs to the stream that asked for it first, and is never given to another stream;
//   - the smallest free block that is large enough is taken, the lowest of equals, and split where enough is left;
//   - what is freed joins its free neighbours.
// A new segment has 2 MiB in the small pool; in the large one 20 MiB, or from 10 MiB on the size rounded up to 2 MiB. With
// expandable segments a pool of a stream has one segment, which grows at its end by pages of 2 or 20 MiB.
// Where the room does not hold what is asked of the device, all segments and pages without a tensor are given back to it, of all
// streams, and it is asked again. Pages that were given back leave holes, which are filled before a segment grows at its end.
class CachingAllocator {
 public:
  enum class Segments : uint8_t { Fixed, Expandable };
  using Handle = size_t;

  // What was done beside the device's first allocations; PyTorch counts the first as num_alloc_retries.
  struct Traffic {
    int64_t retries = 0;      // times that the room was full, and all that could be was given back
    int64_t given_bytes = 0;  // back to the device
    int64_t asked_bytes = 0;  // of the device, the first time and again
  };
  static constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

  // room: bytes that the device has. Where what holds tensors needs more than that, the allocator goes on above it: peak_held says so.
  explicit CachingAllocator(Segments segments, int64_t room = kEndless) : segments_(segments), room_(room) {}

  // bytes: at least 0; 0 takes as much as 1. stream: any number.
  Handle allocate(int64_t bytes, int stream);
  // Once for each handle.
  void free(Handle handle);

  int64_t allocated() const { return allocated_; }  // bytes, as rounded
  int64_t reserved() const { return reserved_; }
  int64_t peak_allocated() const { return peak_allocated_; }
  // Most bytes at once of the segments, or of the pages of expandable ones, that had a tensor in them. An allocator that is full gives
  // all others back to the device: so much it needs at least.
  int64_t peak_held() const { return peak_held_; }
  int64_t reserved(int stream) const;
  const Traffic& traffic() const { return traffic_; }

 private:
  struct Pool {
    int stream = 0;
    bool small = false;
    bool operator<(const Pool& other) const { return std::tie(stream, small) < std::tie(other.stream, other.small); }
  };
  struct Block {
    Pool pool;
    int64_t address = 0, bytes = 0;
    size_t segment = 0;
    bool in_use = false;
    bool mapped = true;  // false: a hole, addresses without memory
  };
  struct Segment {
    int64_t page = 0;           // bytes that are given back as one: all of a fixed segment
    std::vector<int64_t> uses;  // by page: blocks in use that have a part of it
  };
  using Free = std::set<std::tuple<int64_t, int64_t, size_t>>;  // bytes, address, block
  static constexpr size_t kNone = static_cast<size_t>(-1);

  size_t find(const Pool& pool, int64_t bytes) const;
  size_t grow(const Pool& pool, int64_t bytes);
  size_t expand(const Pool& pool, int64_t bytes);
  size_t first_with_room(const Pool& pool, int64_t bytes) const;
  int64_t missing(const Pool& pool, size_t start, int64_t bytes) const;
  size_t map(const Pool& pool, size_t start, int64_t bytes);
  int64_t map_end(const Pool& pool, int64_t bytes);
  int64_t map_hole(size_t hole, int64_t bytes);
  void add_hole(const Pool& pool, int64_t address, int64_t bytes, size_t segment);
  void reserve(const Pool& pool, int64_t bytes);
  void give_back();
  void give_back_pages(size_t block);
  int64_t with_hole(const Block& block) const;
  size_t next_of(const Block& block) const;
  bool is_cached(size_t block) const { return block != kNone && !blocks_[block].in_use && blocks_[block].mapped; }
  size_t add(const Pool& pool, int64_t address, int64_t bytes, size_t segment);
  void take(size_t index, int64_t bytes);
  void join_next(size_t index);
  void count_use(const Block& block, int64_t change);

  const Segments segments_;
  const int64_t room_;
  Traffic traffic_;
  std::vector<Block> blocks_;                        // never erased: handles stay valid
  std::map<std::pair<size_t, int64_t>, size_t> at_;  // by segment and address
  std::map<Pool, Free> free_;
  std::map<Pool, std::pair<size_t, int64_t>> expandable_;  // segment and its end
  std::map<Pool, std::map<int64_t, size_t>> holes_;        // by address
  std::map<int, int64_t> reserved_by_stream_;
  std::vector<Segment> made_;  // by number
  int64_t allocated_ = 0, peak_allocated_ = 0, reserved_ = 0, held_ = 0, peak_held_ = 0;
};

}  // namespace sfsdp::plan

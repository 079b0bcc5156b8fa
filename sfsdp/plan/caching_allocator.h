// SPDX-License-Identifier: BSD-3-Clause
// How much device memory PyTorch's caching allocator holds for a program of allocations and frees: what is *reserved* is
// what a trainer's log shows and what has to fit, what is *allocated* is the sum of the tensors that are alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace sfsdp::plan {

// The rules of c10/cuda/CUDACachingAllocator.cpp, without events between streams, garbage collection and retries:
//   - a size is rounded up to 512 bytes; at most 1 MiB comes from the small pool, more from the large one;
//   - memory belongs to the stream that asked for it first, and is never given to another stream;
//   - the smallest free block that is large enough is taken, the lowest of equals, and split where enough is left;
//   - what is freed joins its free neighbours.
// A new segment has 2 MiB in the small pool; in the large one 20 MiB, or from 10 MiB on the size rounded up to 2 MiB. With
// expandable segments a pool of a stream has one segment, which grows at its end by pages of 2 or 20 MiB.
class CachingAllocator {
 public:
  enum class Segments : uint8_t { Fixed, Expandable };
  using Handle = size_t;

  explicit CachingAllocator(Segments segments) : segments_(segments) {}

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
  // Never smaller than before: nothing is given back.
  int64_t reserved(int stream) const;

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
  };
  struct Segment {
    int64_t page = 0;           // bytes that are given back as one: all of a fixed segment
    std::vector<int64_t> uses;  // by page: blocks in use that have a part of it
  };
  using Free = std::set<std::tuple<int64_t, int64_t, size_t>>;  // bytes, address, block

  size_t find(const Pool& pool, int64_t bytes) const;
  size_t grow(const Pool& pool, int64_t bytes);
  size_t expand(const Pool& pool, int64_t bytes);
  size_t add(const Pool& pool, int64_t address, int64_t bytes, size_t segment);
  void take(size_t index, int64_t bytes);
  void join_next(size_t index);
  void count_use(const Block& block, int64_t change);

  const Segments segments_;
  std::vector<Block> blocks_;                        // never erased: handles stay valid
  std::map<std::pair<size_t, int64_t>, size_t> at_;  // by segment and address
  std::map<Pool, Free> free_;
  std::map<Pool, std::pair<size_t, int64_t>> expandable_;  // segment and its end
  std::map<int, int64_t> reserved_by_stream_;
  std::vector<Segment> made_;  // by number
  int64_t allocated_ = 0, peak_allocated_ = 0, reserved_ = 0, held_ = 0, peak_held_ = 0;
};

}  // namespace sfsdp::plan

// SPDX-License-Identifier: BSD-3-Clause
// What two boxes of one tensor have in common, as runs of elements that lie side by side in both. Whatever moves state between a
// rank and a file, or one mesh and another, moves these runs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/plan/storage_layout.h"

namespace sfsdp::plan {

// All of a tensor, or its elements `range`.
Box whole_box(const std::vector<int64_t>& shape);
Box whole_box(const std::vector<int64_t>& shape, Chunk range);
// All of a tensor of that shape, in as many dimensions as the box has (Box::block_shape): what it may be compared with.
Box whole_beside(const Box& box, const std::vector<int64_t>& shape);
// Whether it is the shape with one dimension as two, blocks and what a block has.
bool is_block_shape(const std::vector<int64_t>& blocks, const std::vector<int64_t>& shape);
int64_t elements_of(const std::vector<Chunk>& dims);
// "[0:12,10:20]".
std::string to_string(const std::vector<Chunk>& dims);

// Elements [first, first + count) of one box, in its own row-major order, are [second, second + count) of the other.
struct BoxRun {
  int64_t first = 0, second = 0, count = 0;
  bool operator==(const BoxRun&) const = default;
};

// The runs of the elements that two boxes (Box::flat of each) share, in the order of both; no two of them could be one. The first
// is found by bisection, so a small part of a large box costs little.
//   first, second: of one tensor: as many dimensions, ranges inside its shape
class CommonRuns {
 public:
  CommonRuns(const Box& first, const Box& second);
  std::optional<BoxRun> next();
  // The elements of `first` from the first one that is shared to the last; empty: none is.
  Chunk range() const;

 private:
  struct Dim {
    int64_t count;          // of common indices
    int64_t first, second;  // what a step takes in each box
  };
  BoxRun whole_run(int64_t number) const;
  BoxRun clipped(BoxRun run) const;

  std::vector<Dim> dims_;  // outer ones, of which each index is a run
  BoxRun start_;           // the first run, where neither box is cut
  Chunk of_first_, of_second_;
  int64_t begin_ = 0, end_ = 0, at_ = 0;  // numbers of runs
};

// Which element of the whole tensor the element `index` of Box::flat is.
int64_t place_in_whole(const std::vector<int64_t>& shape, const Box& box, int64_t index);

void for_each_run(const Box& first, const Box& second, const std::function<void(const BoxRun&)>& body);

}  // namespace sfsdp::plan

// SPDX-License-Identifier: BSD-3-Clause
// A kernel whose results reach memory in parts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sfsdp/testing/machine/rank.h"

namespace sfsdp::plan::machine {

// Draws a number below `n`.
using Draw = std::function<size_t(size_t n)>;

// One run of a kernel on one rank: evaluated when it begins, then written part by part.
class TornKernel {
 public:
  TornKernel(const TaskRun& run, Rank& rank, Draw draw);

  // Writes the next part. Returns what is wrong: what the kernel reads is not what it read when it began, though it has not
  // written there yet; "" where nothing is.
  std::string step();
  bool is_over() const { return next_ == parts_.size(); }

 private:
  struct Part {
    size_t result = 0;        // of made_
    std::vector<char> which;  // by element
  };
  void cut(size_t result);
  std::string compare() const;
  bool is_of_block(size_t result, size_t element) const;

  const TaskRun& run_;
  Rank& rank_;
  Draw draw_;
  const Made made_;              // what a kernel that is not torn would write
  int64_t width_ = 1;            // elements of a row, which its block reads whole before it writes
  bool reads_itself_ = false;    // some result lies where the kernel reads
  std::vector<char> over_rows_;  // by result: complete only after all rows, or the cast in which such a one is written
  std::vector<char> at_its_place_;          // by result: reads of its memory are all of its own elements
  std::vector<Part> parts_;                 // in the order in which they are written
  std::vector<std::vector<char>> written_;  // by result and element
  size_t next_ = 0;
};

}  // namespace sfsdp::plan::machine

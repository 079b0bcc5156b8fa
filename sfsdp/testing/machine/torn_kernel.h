// SPDX-License-Identifier: BSD-3-Clause
// A kernel whose results reach memory in parts.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/testing/machine/rank.h"

namespace sfsdp::plan::machine {

// Draws a number below `n`.
using Draw = std::function<size_t(size_t n)>;

// One run of a kernel on one rank: evaluated when it begins, then written part by part. After a part the kernel is evaluated again
// from memory: what has not been written yet must come out as before. Where it does not, one thing excuses it: the kernel
// computes block by block, and the block of that element finds what it reads as it was, once what this block alone has written
// is put back. How large blocks are is measured (measured_reads.h).
//
// Where the kernel reads what it writes, other numbers lie there for some of these evaluations, nan among them: the greater of two
// elements, written over one of them, comes out as before. Where all that such a kernel makes is infinite or nan, it runs on made-up
// numbers too, in a copy of memory.
class TornKernel {
 public:
  TornKernel(const TaskRun& run, Rank& rank, Draw draw, MeasuredOps& measured, bool may_rehearse = true);

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
  bool is_without_number() const;
  std::string rehearse() const;
  void measure();
  std::string compare();
  // What has been written is there while `find` runs, or something else.
  std::string with_other_numbers(size_t kind, const std::function<std::string()>& find);
  // Calls use(result, element) for what has been written by the block that makes an element of a result.
  template <class Use>
  void for_block(size_t result, size_t element, Use use) const;
  std::vector<std::vector<char>> written_by_block(size_t result, size_t element) const;
  // What the kernel makes where what `which` names of its results is as before it began.
  Made evaluate_without(std::span<const std::vector<char>> which);
  std::string fault(size_t result, size_t element, double now) const;

  const TaskRun& run_;
  Rank& rank_;
  Draw draw_;
  MeasuredOps& measured_;
  const Made made_;                             // what a kernel that is not torn would write
  std::vector<char> in_memory_;                 // by result
  bool reads_itself_ = false;                   // some result lies where the kernel reads
  std::vector<std::vector<std::byte>> before_;  // by result, if so: what was there
  bool is_measured_ = false;                    // what follows is known
  int64_t width_ = 1;                           // elements of a block
  std::vector<char> over_blocks_;               // by result: complete only after all blocks
  std::vector<Part> parts_;                     // in the order in which they are written
  std::vector<std::vector<char>> written_;      // by result and element
  size_t next_ = 0;
  std::string fault_on_made_up_;  // what is wrong with other numbers than those in memory
};

}  // namespace sfsdp::plan::machine

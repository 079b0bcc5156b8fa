// SPDX-License-Identifier: BSD-3-Clause
// Steps that update nothing because a gradient is not finite. One is bad luck; many in a row are a run that is lost, as its
// parameters stay what made the first of them.
#pragma once

#include <cstdint>
#include <string>

namespace sfsdp::train {

// A run ends at this many in a row: an odd batch or two of them pass, a run that cannot recover costs little.
inline constexpr int64_t kMostSkippedInARow = 10;

// State over time: counts, from what the checkpoint had. A step that updates ends the row.
class SkippedSteps {
 public:
  //   in_a_row: up to the step that the run goes on from
  explicit SkippedSteps(int64_t in_a_row = 0) : in_a_row_(in_a_row) {}

  // After step k.
  //   returns: a line for the log; "" where the step has updated
  std::string note(int64_t k, bool skipped);
  //   throws: UserError naming the steps, the cause and the cure, where there are too many in a row
  void check(int64_t k) const;
  int64_t in_a_row() const { return in_a_row_; }

 private:
  int64_t in_a_row_;
  int64_t all_ = 0;  // of this start
};

}  // namespace sfsdp::train

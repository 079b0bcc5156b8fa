// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/skipped_steps.h"

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train {

std::string SkippedSteps::note(int64_t k, bool skipped) {
  in_a_row_ = skipped ? in_a_row_ + 1 : 0;
  if (!skipped) return "";
  const std::string row = in_a_row_ > 1 ? concat(", ", in_a_row_, " in a row") : "";
  return concat("step ", k, ": the gradient norm is not finite, nothing was updated (", ++all_, " so far", row, ")");
}

void SkippedSteps::check(int64_t k) const {
  if (in_a_row_ < kMostSkippedInARow) return;
  const int64_t first = k - in_a_row_ + 1;
  throw UserError(concat("the gradient norm was not finite in steps ", first, " to ", k, ": nothing was updated in ",
                         in_a_row_,
                         " steps in a row, and the parameters cannot recover\n"
                         "  expected an update at least once in ",
                         kMostSkippedInARow, " steps; go back with checkpoint.load_step to a step well before ", first,
                         ", and lower optimizer.lr or training.max_norm; debug.nan = dump names the op"));
}

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/skipped_steps.h"

#include <doctest/doctest.h>

#include "sfsdp/base/error.h"

namespace sfsdp::train::skipped_steps_test {
namespace {

// The step at which a row of steps from `first` on ends the run; 0: none does. "s" is skipped, "u" updates.
int64_t ends_at(SkippedSteps& steps, int64_t first, const std::string& row, std::string* message) {
  for (const char what : row) {
    CHECK(steps.note(first, what == 's').empty() == (what == 'u'));
    try {
      steps.check(first);
    } catch (const UserError& error) {
      *message = error.what();
      return first;
    }
    ++first;
  }
  return 0;
}

}  // namespace

TEST_CASE("ten skipped steps in a row end a run, by name; an update among them begins the row anew") {
  std::string message;
  SkippedSteps lucky;
  CHECK(ends_at(lucky, 1, "sssssssssussssssssss", &message) == 20);
  CHECK(message.find("in steps 11 to 20: nothing was updated in 10 steps in a row") != std::string::npos);
  CHECK(message.find("\n  expected an update") != std::string::npos);
  CHECK(message.find("checkpoint.load_step to a step well before 11") != std::string::npos);
  SkippedSteps never;
  CHECK(ends_at(never, 1, "sssssssssusssssssssusu", &message) == 0);
  CHECK(never.in_a_row() == 0);
}

TEST_CASE("a run that goes on counts on from its checkpoint: it ends after the same step each time") {
  for (const int64_t saved : {4, 9}) {
    SkippedSteps steps(saved);
    std::string message;
    CHECK(ends_at(steps, 21 + saved, "sssssssss", &message) == 30);
    CHECK(message.find("in steps 21 to 30") != std::string::npos);
  }
}

TEST_CASE("the line of a skipped step says how many there were, and how many in a row") {
  SkippedSteps steps;
  CHECK(steps.note(3, true) == "step 3: the gradient norm is not finite, nothing was updated (1 so far)");
  CHECK(steps.note(4, false).empty());
  CHECK(steps.note(5, true) == "step 5: the gradient norm is not finite, nothing was updated (2 so far)");
  CHECK(steps.note(6, true) == "step 6: the gradient norm is not finite, nothing was updated (3 so far, 2 in a row)");
}

}  // namespace sfsdp::train::skipped_steps_test

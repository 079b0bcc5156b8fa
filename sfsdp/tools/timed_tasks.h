// SPDX-License-Identifier: BSD-3-Clause
// Times many tasks so that their sum means something on a machine whose speed changes from one moment to the next: in
// sweeps over all of them, of which the same ones count for every task.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace sfsdp::comm {
class Communicator;
}

namespace sfsdp::tools {

struct TimedTask {
  std::function<void()> run;
  // All ranks, processes of one machine, begin it at one time, and every rank runs it in every sweep.
  bool together = false;
  // Part of a step, where it stands many times: now and then the machine stands still, and whom that hits is chance. So
  // samples above three times a task's median are cut there, and what is cut is shared out over all parts by their time.
  bool part = true;
};

// Without the first, which fetches code, and those that took more than twice the median: the machine stood still. One
// sweep alone stays. To leave out more would be to choose sweeps in which the longest task happened to be fast. Not a
// number: never.
std::vector<size_t> undisturbed(std::span<const double> sweep_seconds);

// Seconds of each task: the mean over the undisturbed sweeps and over all ranks. Ranks sweep side by side and agree on
// which sweeps count. Means, since a sum of them is what a sum of the tasks takes on average. A task that time did not
// reach is not a number; where not even one sweep was finished, what was reached has one sample.
//   group: the ranks; nullptr: one alone
//   seconds: no sweep begins later; within the first, no task that is not `together` does
//   meet_after: after so many seconds of tasks that are not `together` ranks would wait for each other, so these count
//     as on the rank that was slowest in them
std::vector<double> time_in_sweeps(std::span<const TimedTask> tasks, comm::Communicator* group, double seconds,
                                   size_t most_sweeps, double meet_after = std::numeric_limits<double>::infinity());

// All ranks come here before any goes on; the largest of their numbers.
double largest_of(double mine, comm::Communicator* group);
// Element by element.
std::vector<double> mean_of(std::vector<double> mine, comm::Communicator* group);

}  // namespace sfsdp::tools

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/timed_tasks.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::tools {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// All ranks of this machine leave at one time. By then the threads that moved the last message sleep, as they do in a
// step that has computed meanwhile.
void meet(comm::Communicator* group) {
  if (!group) return;
  const std::chrono::duration<double> now = Clock::now().time_since_epoch();
  const std::chrono::duration<double> then(largest_of(now.count() + 2e-3, group));
  while (Clock::now().time_since_epoch() < then) {
  }
}

// Every `meet_after` seconds of tasks that ranks run alone they would meet, and all but the slowest would wait.
void wait_for_slowest(std::span<const TimedTask> tasks, std::vector<double>& sweep, comm::Communicator& group,
                      double meet_after) {
  const std::vector<double> mean = mean_of(sweep, &group);
  std::vector<size_t> part(tasks.size());
  std::vector<double> mine(1), all(1);
  for (size_t task = 0; task < tasks.size(); ++task) {
    if (!tasks[task].together) {
      mine.back() += sweep[task];
      all.back() += mean[task];
    }
    part[task] = all.size() - 1;
    if (all.back() >= meet_after) {
      mine.push_back(0);
      all.push_back(0);
    }
  }
  group.all_reduce(std::as_writable_bytes(std::span(mine)), ir::DType::f64, comm::ReduceOp::Max, {"slowest", ""});
  for (size_t task = 0; task < tasks.size(); ++task)
    if (!tasks[task].together && all[part[task]] > 0) sweep[task] = mean[task] * mine[part[task]] / all[part[task]];
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Parts that ranks run alone by themselves, and those that they run together.
void share_out_stops(std::span<const TimedTask> tasks, std::vector<std::vector<double>>& samples,
                     std::span<const size_t> sweeps) {
  for (const bool together : {false, true}) {
    const auto concerned = [&](size_t task) { return tasks[task].part && tasks[task].together == together; };
    double all = 0, cut = 0;
    for (size_t task = 0; task < tasks.size(); ++task) {
      if (!concerned(task)) continue;
      std::vector<double> of_task;
      for (const size_t sweep : sweeps) of_task.push_back(samples[sweep][task]);
      const double most = 3 * median_of(of_task);
      for (const size_t sweep : sweeps) {
        double& sample = samples[sweep][task];
        all += sample;
        sample = std::min(sample, most);
        cut += sample;
      }
    }
    for (const size_t sweep : sweeps)
      for (size_t task = 0; task < tasks.size(); ++task)
        if (concerned(task)) samples[sweep][task] *= all / cut;
  }
}

}  // namespace

std::vector<size_t> undisturbed(std::span<const double> sweep_seconds) {
  std::vector<size_t> sweeps;
  for (size_t i = 0; i < sweep_seconds.size(); ++i)
    if (!std::isnan(sweep_seconds[i])) sweeps.push_back(i);
  if (sweeps.size() > 1 && sweeps[0] == 0) sweeps.erase(sweeps.begin());
  if (sweeps.empty()) return sweeps;
  std::vector<double> finished;
  for (const size_t i : sweeps) finished.push_back(sweep_seconds[i]);
  const double median = median_of(std::move(finished));
  std::erase_if(sweeps, [&](size_t i) { return sweep_seconds[i] > 2 * median; });
  return sweeps;
}

double largest_of(double mine, comm::Communicator* group) {
  if (group)
    group->all_reduce(std::as_writable_bytes(std::span(&mine, 1)), ir::DType::f64, comm::ReduceOp::Max,
                      {"largest", ""});
  return mine;
}

std::vector<double> mean_of(std::vector<double> mine, comm::Communicator* group) {
  if (!group || mine.empty()) return mine;
  group->all_reduce(std::as_writable_bytes(std::span(mine)), ir::DType::f64, comm::ReduceOp::Sum, {"mean", ""});
  for (double& value : mine) value /= static_cast<double>(group->size());
  return mine;
}

std::vector<double> time_in_sweeps(std::span<const TimedTask> tasks, comm::Communicator* group, double seconds,
                                   size_t most_sweeps, double meet_after) {
  const auto start = Clock::now();
  std::vector<std::vector<double>> samples;  // by sweep and task
  while (samples.size() < most_sweeps && (samples.empty() || largest_of(seconds_since(start), group) < seconds)) {
    std::vector<double>& sweep = samples.emplace_back();
    for (const TimedTask& task : tasks) {
      sweep.push_back(std::nan(""));
      if (samples.size() == 1 && !task.together && seconds_since(start) >= seconds) continue;
      if (task.together) meet(group);
      const auto begin = Clock::now();
      task.run();
      sweep.back() = seconds_since(begin);
    }
  }
  std::vector<double> sums;
  for (const auto& sweep : samples) {
    sums.push_back(0);
    for (const double sample : sweep) sums.back() += sample;
  }
  std::vector<size_t> chosen = undisturbed(mean_of(std::move(sums), group));
  if (chosen.empty())
    chosen = {0};
  else
    share_out_stops(tasks, samples, chosen);
  if (group)
    for (const size_t sweep : chosen) wait_for_slowest(tasks, samples[sweep], *group, meet_after);
  std::vector<double> of_each;
  for (size_t task = 0; task < tasks.size(); ++task) {
    double sum = 0;
    for (const size_t sweep : chosen) sum += samples[sweep][task] / static_cast<double>(chosen.size());
    of_each.push_back(sum);
  }
  return mean_of(std::move(of_each), group);
}

}  // namespace sfsdp::tools

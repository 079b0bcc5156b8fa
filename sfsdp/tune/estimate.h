// SPDX-License-Identifier: BSD-3-Clause
// Times schedules on a profile: what sim::simulate does with the graph that the passes make of one, for one rank and one
// communicator, in microseconds. All gradients are copied into their buckets: which copies write_in_buckets saves depends on
// the step's peak.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sfsdp/tune/profile.h"

namespace sfsdp::tune {

// What happens to a unit's parameters of one kind, in the order in which it happens.
struct ScheduleEvent {
  enum class Kind : uint8_t { StartGather, WaitForGather, StartReduction, WaitForReduction };
  Kind kind = Kind::StartGather;
  size_t param = 0;  // the first of them, in the profile
  bool operator==(const ScheduleEvent&) const = default;
};

// Many schedules of one profile: what a unit costs is kept. Not thread-safe.
class Estimator {
 public:
  explicit Estimator(const StepProfile& profile);  // must outlive this
  ~Estimator();
  Estimator(const Estimator&) = delete;
  Estimator& operator=(const Estimator&) = delete;

  Estimate estimate(const Schedule& schedule);
  double seconds(const Schedule& schedule);  // estimate().seconds alone, in a fraction of the time
  // What runs in forward and backward of the last micro-batch; reductions over replicas are not among them.
  std::vector<ScheduleEvent> events(const Schedule& schedule);

 private:
  struct Bucket;
  struct Scratch;
  class Run;
  const std::vector<Bucket>& buckets_of(size_t first, size_t end);
  void add_param(std::vector<Bucket>& buckets, size_t i) const;
  void hold_gradients(Bucket& b, size_t first, size_t end);
  void fill(const Schedule& schedule);
  void price(Bucket& b) const;
  double memory_seconds(double bytes) const;

  const StepProfile& profile_;
  std::unordered_map<size_t, std::vector<Bucket>> known_;                  // by a unit's parameters: first * n + end
  std::deque<std::vector<std::pair<int64_t, int64_t>>> gradient_changes_;  // of theirs
  std::unique_ptr<Scratch> scratch_;
};

Estimate estimate(const StepProfile& profile, const Schedule& schedule);

}  // namespace sfsdp::tune

// SPDX-License-Identifier: BSD-3-Clause
// Times schedules on a profile: what sim::simulate does with the graph that the passes make of one, for one rank and one
// communicator, in microseconds.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sfsdp/passes/step_profile.h"

namespace sfsdp::passes {

// Many schedules of one profile: what a unit costs is kept. Not thread-safe.
class Predictor {
 public:
  explicit Predictor(const StepProfile& profile);  // must outlive this
  ~Predictor();
  Predictor(const Predictor&) = delete;
  Predictor& operator=(const Predictor&) = delete;

  Prediction predict(const Schedule& schedule);
  double seconds(const Schedule& schedule);  // predict().seconds alone, in a fraction of the time

 private:
  struct Bucket;
  struct Scratch;
  class Run;
  const std::vector<Bucket>& buckets_of(size_t first, size_t end);
  void fill(const Schedule& schedule);
  void price(Bucket& b) const;
  double memory_seconds(double bytes) const;

  const StepProfile& profile_;
  std::unordered_map<size_t, std::vector<Bucket>> known_;                  // by a unit's parameters: first * n + end
  std::deque<std::vector<std::pair<int64_t, int64_t>>> gradient_changes_;  // of theirs
  std::unique_ptr<Scratch> scratch_;
};

Prediction predict(const StepProfile& profile, const Schedule& schedule);

}  // namespace sfsdp::passes

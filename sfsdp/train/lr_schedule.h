// SPDX-License-Identifier: BSD-3-Clause
// TorchTitan's warm-up, stable, decay schedule. A pure function of the step: nothing to save or restore.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sfsdp::train {

enum class DecayType : uint8_t { Linear, Sqrt, Cosine };
// "linear", "sqrt", "cosine"; throws UserError.
DecayType parse_decay_type(std::string_view text);

struct LrScheduleOptions {
  double lr = 8e-4;
  int64_t steps = 10000;                             // length of the whole schedule
  int64_t warmup_steps = 200;                        // at most `steps`; more is cut
  std::optional<double> decay_ratio = std::nullopt;  // part of the steps that decays; unset: all after warm-up; 0: none
  DecayType decay_type = DecayType::Linear;
  double min_lr_factor = 0;
};

// Steps count from 1, as everywhere. With W warm-up, S stable and D decay steps, factor(k) is
//   k / W                           while k <= W: the last warm-up step has the full rate
//   1                               for the next S steps
//   min + (1 - min) * shape(i / D)  for the i-th step after, i = 1 .. ; shape(p) = 1-p | 1-sqrt(p) | (1+cos(pi p))/2
// W + S + D = steps + 1: the last step still trains, the rate would reach `min` at the step after it and stays there.
class LrSchedule {
 public:
  explicit LrSchedule(const LrScheduleOptions& options);
  double factor(int64_t step) const;
  double lr(int64_t step) const { return options_.lr * factor(step); }

 private:
  LrScheduleOptions options_;
  int64_t warmup_ = 0;
  int64_t decay_ = 0;
  int64_t stable_ = 0;
};

}  // namespace sfsdp::train

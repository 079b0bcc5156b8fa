// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::train {

DecayType parse_decay_type(std::string_view text) {
  if (text == "linear") return DecayType::Linear;
  if (text == "sqrt") return DecayType::Sqrt;
  if (text == "cosine") return DecayType::Cosine;
  throw UserError(concat("lr_scheduler.decay_type = \"", text, "\"\n  expected one of linear, sqrt, cosine"));
}

LrSchedule::LrSchedule(const LrScheduleOptions& options) : options_(options) {
  SFSDP_CHECK(options.steps >= 1 && options.warmup_steps >= 0, "steps ", options.steps, ", warmup ",
              options.warmup_steps);
  warmup_ = std::min(options.warmup_steps, options.steps);
  const int64_t after_warmup = options.steps - warmup_;
  decay_ = after_warmup;
  if (options.decay_ratio) {
    // nearbyint rounds halves to even, as Python's round does.
    const double wanted = std::nearbyint(static_cast<double>(options.steps) * *options.decay_ratio);
    decay_ = std::min(static_cast<int64_t>(wanted), after_warmup);
  }
  stable_ = options.steps + 1 - warmup_ - decay_;
}

double LrSchedule::factor(int64_t step) const {
  SFSDP_CHECK(step >= 1, "steps count from 1, got ", step);
  if (step <= warmup_) return static_cast<double>(step) / static_cast<double>(warmup_);
  const int64_t into_decay = step - warmup_ - stable_;
  if (decay_ == 0 || into_decay <= 0) return 1;
  const double p = std::min(1.0, static_cast<double>(into_decay) / static_cast<double>(decay_));
  double shape = 1 - p;
  if (options_.decay_type == DecayType::Sqrt) shape = 1 - std::sqrt(p);
  if (options_.decay_type == DecayType::Cosine) shape = 0.5 * (1 + std::cos(std::numbers::pi * p));
  return options_.min_lr_factor + (1 - options_.min_lr_factor) * shape;
}

}  // namespace sfsdp::train

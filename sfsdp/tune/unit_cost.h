// SPDX-License-Identifier: BSD-3-Clause
// What parameters cost as one unit.
#pragma once

#include <cstdint>
#include <vector>

#include "sfsdp/tune/profile.h"

namespace sfsdp::tune {

// Seconds and bytes of the parameters [first, end) of a profile as one unit.
class UnitCost {
 public:
  UnitCost(const StepProfile& profile, size_t first, size_t end);
  double gather() const;  // seconds
  double reduce() const;
  double gathered_bytes() const;
  double reduced_bytes() const;
  // Seconds of compute from its first read to that of the next unit.
  double forward_compute() const;
  // Seconds of compute that makes its gradients. Remat, which reads a block's parameters early, moves none.
  double backward_compute() const;

 private:
  template <class CostOf>
  double over_kinds(CostOf of) const;

  const StepProfile& profile_;
  size_t first_, end_;
  std::vector<int64_t> elements_;  // by kind
};

}  // namespace sfsdp::tune

// SPDX-License-Identifier: BSD-3-Clause
// profiling.enable_profiling: what the time of the steps that were kept went to, by kind of kernel, and which kernels take the
// most. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/train/step_runs.h"

namespace sfsdp::train {

// The most that this rank's threads do in a second; 0: nobody has measured it.
struct MachineRates {
  double flops = 0;  // in products
  double bytes = 0;  // read and written, in a copy
};

// Products and attention have a rate in flops, all else in bytes that it reads and writes: what bounds it on a machine that
// computes as fast as it can.
class ProfileTable {
 public:
  void add(const StepRuns& step);
  bool empty() const { return steps_.empty(); }

  //   products, attention, rows, elements, copies, others, optimizer (clip and update), communication exposed and hidden, rest:
  //   milliseconds a step, share of it, runs, rate, and what that is of the machine's; then the ten that take the longest, those
  //   that are alike as one: the same ops with the same types
  std::string text(int64_t rank, const MachineRates& rates) const;

 private:
  struct Sum {
    double us = 0, flops = 0, bytes = 0;
    int64_t runs = 0;
    void add(double more_us, double more_flops, double more_bytes);
  };
  struct Alike {
    std::string name;
    std::vector<std::string> modules = {};
    Sum sum = {};
  };
  std::string row(const Sum& sum, const MachineRates& rates) const;

  std::vector<int64_t> steps_;
  double us_ = 0;  // of all steps
  std::map<std::string, Sum> kinds_;
  std::map<std::string, Alike> alike_;
};

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
// debug.nan: which op made the first value of a step that is not finite, as the step is run again op by op. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::train {

// What a floating-point tensor holds.
struct ValueCounts {
  int64_t numel = 0, nan = 0, plus_inf = 0, minus_inf = 0;
  int64_t first = -1;                     // the first element that is not finite, in row-major order; -1: none
  double min = 0, max = 0, mean_abs = 0;  // of the finite ones; 0 where there are none
  int64_t not_finite() const { return nan + plus_inf + minus_inf; }
};

// Sees the ops of one step in the order in which they run, which is the same on all ranks. An infinity that the program
// asks for is no fault: what a mask is filled with, and what it is added to. A NaN is one always.
// State over time: counts ops; the first fault is kept, and nothing changes it.
class NonFiniteWatch {
 public:
  explicit NonFiniteWatch(const ir::Graph& graph);

  //   results: of each result; nullopt where it is not floating
  void see(const ir::Op& op, std::span<const std::optional<ValueCounts>> results);

  struct Fault {
    int64_t number = 0;  // of ops seen before it
    const ir::Op* op = nullptr;
    const ir::Value* value = nullptr;
    ValueCounts counts;
  };
  const std::optional<Fault>& fault() const { return fault_; }

 private:
  enum Sign : unsigned { kPlus = 1, kMinus = 2 };

  std::set<const ir::Value*> read_;
  std::map<const ir::Value*, unsigned> intended_;  // infinities of these signs
  std::optional<Fault> fault_;
  int64_t seen_ = 0;
};

// "nan", without a sign, "inf", "-inf" or the number.
std::string number_text(double value);

// "3 of 128 elements are not finite (2 nan, 1 inf), the first is element 17; the others are from -2 to 3, 0.5 on average
// without sign".
std::string to_string(const ValueCounts& counts);

// What to do about it: by what the op computes, and whether its operands were large, zero or bad already.
//   operands: counts of those that are known
std::string cure_of(const ir::Op& op, const std::map<const ir::Value*, ValueCounts>& operands);

// The fault in a few lines: op as the graph prints it, section and module, its result, its operands, the cure.
std::string describe(const NonFiniteWatch::Fault& fault, const std::map<const ir::Value*, ValueCounts>& operands,
                     int64_t micro_batch);

}  // namespace sfsdp::train

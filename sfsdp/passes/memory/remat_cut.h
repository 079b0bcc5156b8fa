// SPDX-License-Identifier: BSD-3-Clause
// Which values of a block to keep for backward, and which ops to run again instead: for every exchange rate between
// bytes and work the cheapest choice, as a minimum cut.
//
// An op that runs again needs each value it reads; a needed value is kept (its bytes) or made again (its op's work).
// With λ bytes per unit of work, the cheapest choice is a minimum cut between what backward needs and nothing: two nodes
// per value, "needed" and "made again", an edge of its bytes from the one to the other, an edge of λ·work from an op that
// runs again to the sink. As λ falls ever more ops run again, none fewer: the choices are nested.
//
// Source: minimum cut as PyTorch's partitioner has it (torch/_functorch/partitioners.py), without its list of ops that
// may not be computed again: here they cost what they cost.
#pragma once

#include <cstdint>
#include <vector>

namespace sfsdp::passes {

struct CutProblem {
  struct Op {
    int64_t work = 0;        // of running again; more than 0
    std::vector<int> reads;  // values of this problem; all else that it reads is there
    bool operator==(const Op&) const = default;
  };
  struct Value {
    int64_t bytes = 0;
    int op = 0;           // that makes it
    bool needed = false;  // read by backward
    bool operator==(const Value&) const = default;
  };
  std::vector<Op> ops;  // each reads values of ops before it
  std::vector<Value> values;
  bool operator==(const CutProblem&) const = default;
};

struct CutPoint {
  int64_t bytes = 0;        // kept
  int64_t work = 0;         // of the ops that run again
  std::vector<bool> again;  // by op
};

// The choices that are cheapest at some exchange rate: corners of the lower convex hull of all (bytes, work), from all
// that backward reads being kept (work 0) to all being made again (bytes 0). Both change strictly from each to the next.
std::vector<CutPoint> trade_off(const CutProblem& problem);

}  // namespace sfsdp::passes

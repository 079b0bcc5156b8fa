// SPDX-License-Identifier: BSD-3-Clause
// How evenly tokens have chosen experts, by the offsets that mixtures compute with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::step {

// The largest of all mixtures of a step, in its last micro-batch, of the tokens that ranks of one group of `ep` have together.
struct ExpertLoads {
  double tokens = 0;   // of an expert, in means over its mixture's: 1 where all have as many
  double rows = 0;     // of a rank, in even shares of ep
  int64_t rounds = 0;  // in which rows were computed (ExpertParallelOptions::capacity)
};

// Experts of one mixture.
struct MixtureEnds {
  const ir::Value* ends = nullptr;  // i32 [experts]: where each one's rows end
  int64_t ranks = 1;                // that share the experts out
  int64_t room = 0;                 // for rows of a rank at once; 0: for all
};

// Each once, in the order of forward: products of groups (_grouped_mm) with a matrix for each group.
std::vector<MixtureEnds> mixtures_of(const ir::Graph& graph);

// Takes in what one mixture had.
//   ends: what is in memory; not empty
void note_loads(ExpertLoads& loads, const MixtureEnds& mixture, std::span<const int32_t> ends);

}  // namespace sfsdp::step

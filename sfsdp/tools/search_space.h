// SPDX-License-Identifier: BSD-3-Clause
// The configurations that `sfsdp plan --search` looks at.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/train/config/config.h"

namespace sfsdp::tools {

// Ranks of a model axis: parts of a layer, of a sequence, experts of a mixture.
struct ModelAxes {
  int64_t tensor = 1, context = 1, expert = 1;
  int64_t ranks() const { return tensor * context; }  // that are given the same samples
  bool operator==(const ModelAxes&) const = default;
};
ModelAxes model_axes_of(const train::JobConfig& config);

struct Candidate {
  int64_t replicate = 1, shard = 1;  // ranks on each data axis, those of ep among the shards
  ModelAxes axes;
  int64_t stage = 3;                    // ZeRO
  int64_t local = 1, accumulation = 1;  // sequences of a micro-batch, micro-batches
  std::string remat = "none";           // none, op, full
  bool reshard = true;                  // gather again for backward; stage 3 alone asks
};

// What is varied, and a candidate's value of it, in this order: mesh, ZeRO stage, micro-batch, remat, reshard.
using Choices = std::array<std::pair<std::string, std::string>, 5>;
Choices choices_of(const Candidate& c);

// Every mesh of `world` ranks with these model axes, every micro-batch that divides a rank's share of the global batch, all stages
// that differ on that mesh.
//   throws: UserError where the global batch is no multiple of the ranks
std::vector<Candidate> search_space(const train::JobConfig& config, int64_t world, const ModelAxes& axes);
// A few of them, of which the best says how good the axes are: most shards, stage 3, the smallest micro-batch and the largest,
// nothing computed again and all.
std::vector<Candidate> first_look(const train::JobConfig& config, int64_t world, const ModelAxes& axes);
// Numbers of ranks that tp or cp may have beside the other one, of `other` ranks: both within a node, and so that they divide the world.
std::vector<int64_t> degrees_beside(int64_t other, int64_t world, int64_t ranks_of_node);
// Numbers of ranks that ep may have beside them, over nodes too: so that they divide the ranks that have samples of their own.
//   most: and no more than these, the experts of a mixture
std::vector<int64_t> expert_degrees(const ModelAxes& axes, int64_t world, int64_t most);

// `base` with the candidate's values.
train::JobConfig config_of(const train::JobConfig& base, const Candidate& c);
// The same as an object of options for a line of `simulate --sweep`.
std::string json_of(const train::JobConfig& base, const Candidate& c);

// Candidates of one key compile to the same ops; sizes differ.
std::string structure_of(const Candidate& c);

}  // namespace sfsdp::tools

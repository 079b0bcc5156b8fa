// SPDX-License-Identifier: BSD-3-Clause
// The mean loss over a validation set: samples 0 .. in order, each with the same weight, on any number of ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sfsdp/train/data/loader.h"

namespace sfsdp::train {

struct ValidationOptions {
  int64_t local_batch_size = 1;  // rows of a rank's batch
  int64_t data_rank = 0;
  int64_t data_ranks = 1;
  int64_t steps = -1;  // batches, at most those of one pass over the set; -1: one pass
};

struct ValidationResult {
  double loss = 0;      // mean over all targets
  int64_t tokens = 0;   // targets, over all ranks; those that the loss counts
  int64_t batches = 0;  // calls of `evaluate`, the same on all ranks
};

// Calls of `evaluate` that together see `samples` samples once each, as how many of them a batch of `rows` rows holds: `rows` as
// long as there are so many left, then divisors of `rows`. In a batch of c samples each stands in rows / c rows next to each
// other, so that the batch's mean is theirs. A batch of another shape would be compiled anew, a padded one would need a mask.
std::vector<int64_t> fill_batches(int64_t samples, int64_t rows);

//   evaluate: the mean loss of all ranks' rows of a batch; a collective call
//   count:    where the loss does not count all: how many targets of all ranks' rows it counts; a collective call
//   throws:   UserError if it counts none; what Samples::append, `evaluate` and `count` throw
ValidationResult validate(Samples& source, const ValidationOptions& options,
                          const std::function<double(const MicroBatch&)>& evaluate,
                          const std::function<int64_t(const MicroBatch&)>& count = {});

}  // namespace sfsdp::train

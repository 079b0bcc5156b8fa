// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/validation.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::train {

std::vector<int64_t> fill_batches(int64_t samples, int64_t rows) {
  SFSDP_CHECK(samples >= 0 && rows >= 1, samples, " samples in batches of ", rows);
  std::vector<int64_t> batches(static_cast<size_t>(samples / rows), rows);
  for (int64_t left = samples % rows; left > 0;) {
    int64_t count = left;
    while (rows % count != 0) --count;
    batches.push_back(count);
    left -= count;
  }
  return batches;
}

ValidationResult validate(Samples& source, const ValidationOptions& options,
                          const std::function<double(const MicroBatch&)>& evaluate,
                          const std::function<int64_t(const MicroBatch&)>& count_targets) {
  const int64_t rows = options.local_batch_size * options.data_ranks;
  const int64_t all = source.size() / rows + 1;  // batches, or more
  const int64_t samples =
      options.steps < 0 ? source.size() : std::min(source.size(), std::min(options.steps, all) * rows);
  ValidationResult result;
  int64_t first = 0;
  double sum = 0, all_weights = 0;
  for (const int64_t count : fill_batches(samples, rows)) {
    MicroBatch batch(source.layout());
    for (int64_t r = 0; r < options.local_batch_size; ++r) {
      const int64_t row = options.data_rank * options.local_batch_size + r;
      source.append(first + row / (rows / count), batch.tensors);
    }
    // A target of a repeated sample stands there as often as the sample.
    const int64_t weight = count_targets ? count_targets(batch) / (rows / count) : count;
    if (weight > 0) sum += evaluate(batch) * static_cast<double>(weight);
    all_weights += static_cast<double>(weight);
    first += count;
    ++result.batches;
  }
  if (all_weights == 0)
    throw UserError(concat(source.name(), ": the loss counts no target of ", samples, " samples",
                           "\n  expected some, such as completions; raise validation.seq_len or validation.steps"));
  result.loss = sum / all_weights;
  result.tokens = count_targets ? static_cast<int64_t>(all_weights) : samples * source.seq_len();
  return result;
}

}  // namespace sfsdp::train

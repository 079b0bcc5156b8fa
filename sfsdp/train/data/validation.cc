// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/validation.h"

#include <algorithm>

#include "sfsdp/base/check.h"

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
                          const std::function<double(const MicroBatch&)>& evaluate) {
  const int64_t rows = options.local_batch_size * options.data_ranks;
  const int64_t all = source.size() / rows + 1;  // batches, or more
  const int64_t samples =
      options.steps < 0 ? source.size() : std::min(source.size(), std::min(options.steps, all) * rows);
  ValidationResult result;
  int64_t first = 0;
  double sum = 0;
  for (const int64_t count : fill_batches(samples, rows)) {
    MicroBatch batch(source.layout());
    for (int64_t r = 0; r < options.local_batch_size; ++r) {
      const int64_t row = options.data_rank * options.local_batch_size + r;
      source.append(first + row / (rows / count), batch.tensors);
    }
    sum += evaluate(batch) * static_cast<double>(count);
    first += count;
    ++result.batches;
  }
  result.loss = sum / static_cast<double>(samples);
  result.tokens = samples * source.seq_len();
  return result;
}

}  // namespace sfsdp::train

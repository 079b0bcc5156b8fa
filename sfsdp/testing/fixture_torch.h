// SPDX-License-Identifier: BSD-3-Clause
// Batches of a fixture's steps as tensors.
#pragma once

#include <ATen/ATen.h>

#include "sfsdp/capture/capture_step.h"
#include "tests/fixtures/fixture.h"

namespace sfsdp::testing {

// Rows first to first + rows - 1 of a step: tokens and targets, both i64 [rows, seq_len].
inline capture::Batch batch_of(const Fixture& fixture, int64_t step, int64_t first, int64_t rows) {
  const auto ids = testing::fixture_batch(fixture.training, step);
  const int64_t length = fixture.training.seq_len;
  capture::Batch batch = {at::empty({rows, length}, at::kLong), at::empty({rows, length}, at::kLong)};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < length; ++i)
      for (size_t side : {0, 1})
        batch[side].mutable_data_ptr<int64_t>()[r * length + i] =
            ids[static_cast<size_t>(first + r)][static_cast<size_t>(i) + side];
  return batch;
}

}  // namespace sfsdp::testing

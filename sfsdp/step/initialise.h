// SPDX-License-Identifier: BSD-3-Clause
// Replays a module's own initialisation for one parameter, or for this rank's rows of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "sfsdp/capture/capture_step.h"

namespace sfsdp::step {

struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
};

// Rows [first, first + count) of dimension 0 of `tensor` as its module initialises it (all of a 0-d one). Random numbers
// are keyed by (seed, path, element), so every mesh starts from the same weights. Only these rows are allocated when
// the initialisation is elementwise; otherwise (orthogonal_) the whole tensor is made, cut and freed.
at::Tensor initialise_rows(const capture::StateTensor& tensor, uint64_t seed, RowRange rows);

// Whether the above needs the whole tensor in memory for a moment.
bool needs_whole_tensor(const capture::StateTensor& tensor);

}  // namespace sfsdp::step

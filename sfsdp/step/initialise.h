// SPDX-License-Identifier: BSD-3-Clause
// Replays a module's own initialisation for one parameter, or for this rank's part of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "sfsdp/capture/capture_step.h"
#include "sfsdp/plan/storage_layout.h"

namespace sfsdp::step {

// Elements [first, first + count) of `tensor`, row-major, as its module initialises it: a flat tensor, a view of
// real weights. Random numbers are keyed by (seed, path, element), so every mesh starts from the same weights. Only these elements are allocated when
// the initialisation is elementwise; otherwise (orthogonal_) the whole tensor is made, cut and freed.
at::Tensor initialise_range(const capture::StateTensor& tensor, uint64_t seed, int64_t first, int64_t count);

// The same of a box of the tensor, or a range of that box.
at::Tensor initialise_box(const capture::StateTensor& tensor, uint64_t seed, const plan::Box& box);

// Whether the above needs the whole tensor in memory for a moment.
bool needs_whole_tensor(const capture::StateTensor& tensor);

}  // namespace sfsdp::step

// SPDX-License-Identifier: BSD-3-Clause
// Which ranks hold the same elements of a stored tensor: they share the work of writing them.
#pragma once

#include "sfsdp/parallel/data_parallel.h"
#include "sfsdp/step/step.h"

namespace sfsdp::step {

// The axes along which all ranks have the same part of the tensor, outer first: those that cut neither it nor the buffer that it
// lies in. Two tensors may have as many holders each and not the same ones: over dp_replicate what tp cuts, over tp what dp_shard
// cuts.
AxisList holder_axes(const Strategy& strategy, const StoredTensor& tensor);

// The model axes among them: along these also what each data rank has of its own is the same.
AxisList model_holder_axes(const Strategy& strategy, const StoredTensor& tensor);

}  // namespace sfsdp::step

// SPDX-License-Identifier: BSD-3-Clause
// Where a rank's part of a tensor of the state lies.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/plan/storage_layout.h"

namespace sfsdp {

// How one parameter, buffer or optimizer tensor is stored: in a flat buffer of the program, alone or with others.
struct StoredTensor {
  std::string name;
  std::vector<int64_t> global_shape;
  // The same elements with blocks that a model axis cuts as a dimension of their own (parallel/separate_blocks.h), [3, D, D] of [3 D, D]:
  // cuts and boxes are of these; empty: of global_shape.
  std::vector<int64_t> block_shape = {};
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool trainable = false;
  int64_t source = -1;               // index in Program::state, -1 for the optimizer's
  std::string buffer;                // the param or state of the graph that holds it
  int64_t offset = 0;                // of its first element in the whole buffer
  std::vector<plan::Cut> cuts = {};  // of the tensor, by dimension, over model axes: the buffer holds a box of it
  int64_t shard = 0;  // elements of the buffer that a rank holds: all of them, or from its place on shard_axes × shard
  AxisList shard_axes = {};                 // those that cut the buffer
  bool sharded = false, in_bucket = false;  // in a flat buffer: a rank's part need not be whole rows

  const std::vector<int64_t>& boxed_shape() const { return block_shape.empty() ? global_shape : block_shape; }
};

}  // namespace sfsdp

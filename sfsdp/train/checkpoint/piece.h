// SPDX-License-Identifier: BSD-3-Clause
// A rank's state as checkpoints see it: parts of tensors in memory, whatever unit, layout or mesh put them there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/train/checkpoint/manifest.h"

namespace sfsdp::train::checkpoint {

// Elements [begin, end) of a tensor, or of a box of it, row-major, at `data`.
struct Piece {
  std::string name;
  TensorKind kind = TensorKind::Parameter;
  ir::DType dtype = ir::DType::f32;
  std::vector<int64_t> shape;   // of the whole tensor
  int64_t rank = -1;            // as in StoredTensor
  std::vector<Chunk> box = {};  // by dimension, what model axes leave this rank; empty: the whole tensor
  std::vector<int64_t> block_shape =
      {};  // plan::Box::block_shape: of boxes of a weight in blocks, the same on all ranks
  int64_t begin = 0, end = 0;
  std::byte* data = nullptr;
  // Which one this is of the ranks that hold the same elements, how many those are, and the axes that they lie along:
  // as many ranks along other axes are others.
  int64_t holder = 0, holders = 1;
  AxisList along = {};
  bool frozen = false;  // a parameter that no step changes

  int64_t numel() const;      // of the whole tensor
  int64_t box_numel() const;  // of what begin and end count in
  plan::Box place() const;    // what of the tensor this is
  std::span<std::byte> bytes() const;
};

// What this rank writes: the ranks that hold the same elements write an equal share of bytes each, no element twice. A
// rank's share is one stretch over all tensors that it holds with the same others, so few tensors are cut. Wide elements come
// first, so that each piece is aligned in a file.
//   pieces: all of this rank's, in the same order on all ranks
std::vector<Piece> share_out(const std::vector<Piece>& pieces);

}  // namespace sfsdp::train::checkpoint

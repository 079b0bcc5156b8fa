// SPDX-License-Identifier: BSD-3-Clause
// Boxes of a checkpoint beside those of a run, where one of them, or both, are of blocks (plan::Box::block_shape).
#pragma once

#include <vector>

#include "sfsdp/train/checkpoint/manifest.h"
#include "sfsdp/train/checkpoint/piece.h"

namespace sfsdp::train::checkpoint {

struct BesideEachOther {
  plan::Box stored, mine;  // in as many dimensions
};
// What is no box, of one side, has no dimensions of its own: it is taken in those of the other.
//   piece: of comparable_pieces
BesideEachOther beside_each_other(const StoredTensor& tensor, const plan::Box& stored, const Piece& piece);

// The pieces; one that is a box in other blocks than the stored boxes are as ranges of the whole tensor, a run of elements each.
std::vector<Piece> comparable_pieces(const Manifest& manifest, const std::vector<Piece>& pieces);

}  // namespace sfsdp::train::checkpoint

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/comparable.h"

#include <utility>

#include "sfsdp/plan/common_runs.h"

namespace sfsdp::train::checkpoint {
namespace {

plan::Box range_of_whole(const plan::Box& like, const std::vector<int64_t>& shape, Chunk range) {
  plan::Box whole = plan::whole_beside(like, shape);
  whole.flat = range;
  return whole;
}

bool is_comparable(const StoredTensor* stored, const Piece& piece) {
  return !stored || stored->boxes.empty() || piece.box.empty() || stored->block_shape == piece.block_shape;
}

void add_runs(const Piece& piece, std::vector<Piece>& pieces) {
  const plan::Box own = piece.place();
  const int64_t width = ir::size_in_bytes(piece.dtype);
  plan::for_each_run(own, plan::whole_beside(own, piece.shape), [&](const plan::BoxRun& run) {
    Piece part = piece;
    part.box.clear();
    part.block_shape.clear();
    part.begin = run.second;
    part.end = run.second + run.count;
    part.data = piece.data ? piece.data + (run.first - piece.begin) * width : nullptr;
    pieces.push_back(std::move(part));
  });
}

}  // namespace

BesideEachOther beside_each_other(const StoredTensor& tensor, const plan::Box& stored, const Piece& piece) {
  BesideEachOther boxes{stored, piece.place()};
  if (tensor.boxes.empty()) boxes.stored = range_of_whole(boxes.mine, tensor.shape, stored.flat);
  if (piece.box.empty()) boxes.mine = range_of_whole(stored, piece.shape, boxes.mine.flat);
  return boxes;
}

std::vector<Piece> comparable_pieces(const Manifest& manifest, const std::vector<Piece>& pieces) {
  std::vector<Piece> comparable;
  for (const Piece& piece : pieces) {
    if (is_comparable(manifest.find(piece.name, piece.rank), piece))
      comparable.push_back(piece);
    else
      add_runs(piece, comparable);
  }
  return comparable;
}

}  // namespace sfsdp::train::checkpoint

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/stretch_reader.h"

#include "sfsdp/train/checkpoint/load.h"
#include "sfsdp/train/checkpoint/store.h"

namespace sfsdp::train::checkpoint {

Piece piece_of(const StoredTensor& t) {
  Piece piece;
  piece.name = t.name;
  piece.kind = t.kind;
  piece.dtype = t.dtype;
  piece.shape = t.shape;
  piece.rank = t.rank;
  piece.end = t.numel();
  return piece;
}

StretchReader::StretchReader(const std::string& path) : path_(path), manifest_(open_checkpoint(path)) {}

std::span<const std::byte> StretchReader::read(Piece piece, int64_t begin, int64_t end) {
  piece.begin = begin;
  piece.end = end;
  memory_.resize(static_cast<size_t>((end - begin) * ir::size_in_bytes(piece.dtype)));
  piece.data = memory_.data();
  load(manifest_, path_, {piece});
  return memory_;
}

}  // namespace sfsdp::train::checkpoint

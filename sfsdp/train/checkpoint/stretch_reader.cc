// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/stretch_reader.h"

#include <utility>

#include "sfsdp/train/checkpoint/left_out.h"
#include "sfsdp/train/checkpoint/load.h"
#include "sfsdp/train/checkpoint/source_reader.h"
#include "sfsdp/train/checkpoint/store.h"
#include "sfsdp/train/weights/float_convert.h"

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

StretchReader::StretchReader(const std::string& path, std::string archive, int depth)
    : path_(path), archive_(std::move(archive)), depth_(depth), manifest_(open_checkpoint(path)) {}
StretchReader::~StretchReader() = default;

void StretchReader::read_left_out(const StoredTensor& tensor, const Piece& piece) {
  if (!source_) source_ = std::make_unique<SourceReader>(manifest_, path_, archive_, depth_);
  if (tensor.dtype == piece.dtype) return source_->read(tensor, piece.begin, memory_);
  if (!is_weight_dtype(tensor.dtype) || !is_weight_dtype(piece.dtype))
    throw UserError(is_left_out(manifest_, tensor, path_));
  std::vector<std::byte> stored(static_cast<size_t>((piece.end - piece.begin) * ir::size_in_bytes(tensor.dtype)));
  source_->read(tensor, piece.begin, stored);
  convert_floats(stored, tensor.dtype, memory_, piece.dtype);
}

std::span<const std::byte> StretchReader::read(Piece piece, int64_t begin, int64_t end) {
  piece.begin = begin;
  piece.end = end;
  memory_.resize(static_cast<size_t>((end - begin) * ir::size_in_bytes(piece.dtype)));
  piece.data = memory_.data();
  if (const StoredTensor* stored = manifest_.find(piece.name); stored && stored->digest)
    read_left_out(*stored, piece);
  else
    load(manifest_, path_, {piece});
  return memory_;
}

}  // namespace sfsdp::train::checkpoint

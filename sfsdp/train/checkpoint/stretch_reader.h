// SPDX-License-Identifier: BSD-3-Clause
// Tensors of a checkpoint a stretch at a time, for what turns one into something else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/train/checkpoint/manifest.h"
#include "sfsdp/train/checkpoint/piece.h"

namespace sfsdp::train::checkpoint {

// A tensor of a checkpoint as a piece that has no memory yet.
Piece piece_of(const StoredTensor& t);

class SourceReader;

// Reads stretches of tensors, each checked against its hashes. What the checkpoint leaves out is read from where it is, once a
// tensor is asked for.
class StretchReader {
 public:
  //   path:    a folder step-N
  //   archive: as SourceReader
  //   throws:  UserError if it is no checkpoint
  explicit StretchReader(const std::string& path, std::string archive = "", int depth = 0);
  ~StretchReader();
  const Manifest& manifest() const { return manifest_; }

  // Elements of the piece's tensor, in the piece's dtype, until the next call.
  //   throws: UserError as load and SourceReader do
  std::span<const std::byte> read(Piece piece, int64_t begin, int64_t end);

 private:
  void read_left_out(const StoredTensor& tensor, const Piece& piece);

  std::string path_, archive_;
  int depth_;
  Manifest manifest_;
  std::unique_ptr<SourceReader> source_;
  std::vector<std::byte> memory_;
};

}  // namespace sfsdp::train::checkpoint

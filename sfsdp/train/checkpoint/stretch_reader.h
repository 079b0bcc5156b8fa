// SPDX-License-Identifier: BSD-3-Clause
// Tensors of a checkpoint a stretch at a time, for what turns one into something else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/train/checkpoint/manifest.h"
#include "sfsdp/train/checkpoint/piece.h"

namespace sfsdp::train::checkpoint {

// A tensor of a checkpoint as a piece that has no memory yet.
Piece piece_of(const StoredTensor& t);

// Reads stretches of tensors, each checked against its hashes.
class StretchReader {
 public:
  //   path:   a folder step-N
  //   throws: UserError if it is no checkpoint
  explicit StretchReader(const std::string& path);
  const Manifest& manifest() const { return manifest_; }

  // Elements of the piece's tensor, in the piece's dtype, until the next call.
  //   throws: UserError as load does
  std::span<const std::byte> read(Piece piece, int64_t begin, int64_t end);

 private:
  std::string path_;
  Manifest manifest_;
  std::vector<std::byte> memory_;
};

}  // namespace sfsdp::train::checkpoint

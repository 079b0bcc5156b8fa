// SPDX-License-Identifier: BSD-3-Clause
// Reads from a checkpoint just the elements that a rank holds, wherever they were saved from. Every byte that is used
// has been checked against its hash.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/train/checkpoint/manifest.h"
#include "sfsdp/train/checkpoint/piece.h"

namespace sfsdp::train::checkpoint {

// One stretch of a file, of which elements of a piece are taken: all of it, unless their boxes differ.
struct PlannedRead {
  int64_t file = 0;
  int64_t offset = 0;  // in the file, of the stored range's first element
  const StoredRange* range = nullptr;
  const StoredTensor* tensor = nullptr;
  const Piece* piece = nullptr;
  int64_t begin = 0, end = 0;  // as the range counts them: from the first element that the piece has to the last
};

// What must be read for the pieces, in the order of files and offsets. Where a buffer has one value per rank, a data rank takes
// its own if the checkpoint has as many data ranks; else rank r takes that of r modulo the checkpoint's.
//   pieces: of comparable_pieces
//   throws: UserError naming a tensor that the checkpoint does not have, or has of another shape
std::vector<PlannedRead> plan_reads(const Manifest& manifest, const std::vector<Piece>& pieces,
                                    const std::string& checkpoint);

// Fills the pieces. Other floating dtypes are converted as PyTorch does.
//   throws:  DamagedError naming file, tensor and elements whose bytes are not what was written; UserError as above, and
//            for dtypes of which one is no floating point
void load(const Manifest& manifest, const std::string& path, const std::vector<Piece>& pieces);

// Compares every byte of the files with the manifest.
//   returns: a line for each wrong place; none: the checkpoint is what was written
std::vector<std::string> verify(const Manifest& manifest, const std::string& path);

}  // namespace sfsdp::train::checkpoint

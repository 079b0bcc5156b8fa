// SPDX-License-Identifier: BSD-3-Clause
// One rank's file of a checkpoint: safetensors, so that any library of that format reads the pieces.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/train/checkpoint/manifest.h"
#include "sfsdp/train/checkpoint/piece.h"

namespace sfsdp::train::checkpoint {

// "w" for a whole tensor, which keeps its shape; "w[128:256]" for these elements, one-dimensional; "w@3" for data rank 3's.
std::string name_in_file(const Piece& piece);

// Writes and syncs the file; each byte is hashed on its way.
//   fragment: gets this file and its ranges
//   throws:   FileError naming the file, where it cannot be written
void write_shard(const std::string& folder, const std::string& name, const std::vector<Piece>& pieces,
                 Manifest& fragment);

}  // namespace sfsdp::train::checkpoint

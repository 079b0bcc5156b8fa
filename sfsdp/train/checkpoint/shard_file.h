// SPDX-License-Identifier: BSD-3-Clause
// One rank's file of a checkpoint: safetensors, so that any library of that format reads the pieces.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/train/checkpoint/manifest.h"
#include "sfsdp/train/checkpoint/piece.h"

namespace sfsdp::train::checkpoint {

// "w" for a whole tensor, which keeps its shape; "w[128:256]" for these elements, one-dimensional; "w@3" for data rank 3's.
// "w[0:12,10:20]" for a box, of its shape; "w[0:12,10:20][5:17]" for these elements of the box.
std::string name_in_file(const Piece& piece);

// "rank-00003.safetensors".
std::string shard_name(int rank);

// What the file begins with: the format's 8 bytes of length and the JSON, padded with blanks so that the data begins on 64
// bytes. The pieces need no memory.
std::string shard_header(const std::vector<Piece>& pieces);

// Elements [begin, end) of a piece, in its dtype; they last until the next call.
using ReadPiece = std::function<std::span<const std::byte>(const Piece& piece, int64_t begin, int64_t end)>;

// Writes and syncs the file; each byte is hashed on its way.
//   fragment: gets this file and its ranges
//   read:     called for each block, in the order of the file; unset: pieces have memory
//   image:    the whole file, if memory has it on a page: shard_header() and then the pieces, which lie there
//   throws:   as fail does (files.h), where it cannot be written
void write_shard(const std::string& folder, const std::string& name, const std::vector<Piece>& pieces,
                 Manifest& fragment, const ReadPiece& read = {}, std::span<const std::byte> image = {});

}  // namespace sfsdp::train::checkpoint

// SPDX-License-Identifier: BSD-3-Clause
// Frozen weights that a checkpoint leaves out (checkpoint.frozen = none): where they come from, and a digest of each tensor that
// says whether they are still the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/train/checkpoint/manifest.h"
#include "sfsdp/train/checkpoint/piece.h"

namespace sfsdp::train::checkpoint {

// Checkpoints that leave out what others hold may follow each other; more than this is a circle.
inline constexpr int kMostSources = 32;
inline constexpr const char* kCircle =
    "its frozen weights are those of a checkpoint that leaves them out for another, and so on in a circle\n  expected "
    "one"
    " that holds them";

// A sum over the elements, modulo 2^64, of a hash of each element's place and bits. So parts of a tensor are digested wherever
// they lie, and the digest of the whole is their sum, whatever the mesh. It finds damage, it does not resist an attacker.
//   bytes: elements of `width` bytes (1, 2, 4 or 8), the first of which is element `begin` of the tensor
uint64_t digest_of(std::span<const std::byte> bytes, int64_t width, int64_t begin);
// The same of what a piece holds, wherever that lies in the tensor.
uint64_t digest_of(const Piece& piece);

// "the archive model.pt2", "the Hugging Face folder F", for messages.
std::string to_string(const WeightSource& source);
// The path of a source that a checkpoint names: "step-4" lies beside it.
std::string path_of(const WeightSource& source, const std::string& checkpoint);
// The source with a path that holds in any folder.
//   checkpoint: that names it; read for a source that is a checkpoint alone
WeightSource resolved(const WeightSource& source, const std::string& checkpoint);

// The pieces that the checkpoint leaves out, taken out of `pieces`.
//   throws: UserError for one of another shape or dtype
std::vector<Piece> take_left_out(const Manifest& manifest, std::vector<Piece>& pieces, const std::string& checkpoint);

// Messages of errors.
std::string cure_of_change(const WeightSource& source);
std::string is_left_out(const Manifest& manifest, const StoredTensor& tensor, const std::string& checkpoint);
//   others: how many tensors have another digest beside this one
std::string has_changed(const WeightSource& source, const StoredTensor& tensor, uint64_t got, size_t others,
                        const std::string& checkpoint);

}  // namespace sfsdp::train::checkpoint

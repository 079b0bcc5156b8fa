// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/shard_file.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "sfsdp/base/check.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/train/checkpoint/files.h"
#include "sfsdp/train/weights/safetensors_header.h"

namespace sfsdp::train::checkpoint {
namespace {

bool is_whole(const Piece& piece) { return piece.begin == 0 && piece.end == piece.box_numel(); }

std::vector<int64_t> shape_in_file(const Piece& piece) {
  if (!is_whole(piece)) return {piece.end - piece.begin};
  if (piece.box.empty()) return piece.shape;
  std::vector<int64_t> shape;
  for (const Chunk& chunk : piece.box) shape.push_back(chunk.length);
  return shape;
}

}  // namespace

std::string shard_header(const std::vector<Piece>& pieces) {
  SafetensorsHeader header;
  for (const Piece& p : pieces) header.add(name_in_file(p), p.dtype, shape_in_file(p), p.bytes().size());
  return header.bytes(64);
}

std::string name_in_file(const Piece& piece) {
  std::string name = piece.name;
  if (piece.rank >= 0) name += concat("@", piece.rank);
  if (!piece.box.empty()) name += plan::to_string(piece.box);
  if (!is_whole(piece)) name += concat("[", piece.begin, ":", piece.end, "]");
  return name;
}

std::string shard_name(int rank) {
  char name[64];
  std::snprintf(name, sizeof(name), "rank-%05d.safetensors", rank);
  return name;
}

void write_shard(const std::string& folder, const std::string& name, const std::vector<Piece>& pieces,
                 Manifest& fragment, const ReadPiece& read, std::span<const std::byte> image) {
  const std::string path = folder + "/" + name;
  const Fd file = create_file(path, cure_of);
  const std::string header = shard_header(pieces);
  if (image.empty()) write_all(file.get(), std::as_bytes(std::span(header)), path);
  auto offset = static_cast<int64_t>(header.size());
  fragment.tensors.clear();
  for (const Piece& p : pieces) {
    StoredTensor tensor{p.name, p.kind, p.dtype, p.shape, p.rank, {}};
    StoredRange range{p.begin, p.end, 0, offset, {}};
    const int64_t width = ir::size_in_bytes(p.dtype), at_once = kBlockBytes / width;
    for (int64_t begin = p.begin; begin < p.end; begin += at_once) {
      const int64_t end = std::min(p.end, begin + at_once);
      const std::span<const std::byte> block = read ? read(p, begin, end)
                                                    : p.bytes().subspan(static_cast<size_t>((begin - p.begin) * width),
                                                                        static_cast<size_t>((end - begin) * width));
      range.hashes.push_back(xxh3(block));
      if (image.empty()) write_all(file.get(), block, path);
      offset += static_cast<int64_t>(block.size());
    }
    if (p.begin < p.end && !p.box.empty()) {
      tensor.boxes = {p.box};
      tensor.block_shape = p.block_shape;
      range.box = 0;
    }
    if (p.begin < p.end) tensor.ranges.push_back(std::move(range));
    fragment.tensors.push_back(std::move(tensor));
  }
  if (!image.empty()) {
    SFSDP_CHECK(std::ssize(image) == offset, path, " has ", offset, " bytes, its image ", image.size());
    write_past_cache(file.get(), image, path);
  }
  sync_file(file.get(), path, cure_of);
  fragment.files = {{name, offset, static_cast<int64_t>(header.size()), xxh3(header)}};
}

}  // namespace sfsdp::train::checkpoint

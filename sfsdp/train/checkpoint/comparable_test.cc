// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/comparable.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/testing/memory_folder.h"
#include "sfsdp/train/checkpoint/left_out.h"
#include "sfsdp/train/checkpoint/load.h"
#include "sfsdp/train/checkpoint/shard_file.h"

namespace sfsdp::train::checkpoint::comparable_test {
namespace {

using Shape = std::vector<int64_t>;

const Shape kShape = {24, 8};

// How ranks share out a tensor [24, 8]: a dimension of it, or of its shape with blocks, in equal parts.
struct Way {
  int64_t ranks = 1;
  Shape block_shape = {};
  size_t dim = 0;
};
const std::vector<Way> kWays = {{1},
                                {2, {}, 0},
                                {4, {}, 1},
                                {2, {3, 8, 8}, 1},
                                {4, {3, 8, 8}, 1},
                                {4, {2, 12, 8}, 1},
                                {2, {24, 2, 4}, 2},
                                {4, {24, 2, 4}, 2}};

std::vector<Chunk> box_of(const Way& way, int64_t rank) {
  if (way.ranks == 1) return {};
  std::vector<Chunk> box;
  for (const int64_t size : way.block_shape.empty() ? kShape : way.block_shape) box.push_back({0, size});
  box[way.dim].length /= way.ranks;
  box[way.dim].offset = rank * box[way.dim].length;
  return box;
}

// Which element of the whole each of a rank's is, index by index.
std::vector<float> places_of(const Way& way, int64_t rank) {
  const Shape& shape = way.block_shape.empty() ? kShape : way.block_shape;
  std::vector<int64_t> places = {0};
  for (size_t d = 0; d < shape.size(); ++d) {
    const std::vector<Chunk> box = box_of(way, rank);
    const Chunk range = box.empty() ? Chunk{0, shape[d]} : box[d];
    std::vector<int64_t> next;
    for (const int64_t place : places)
      for (int64_t i = 0; i < range.length; ++i) next.push_back(place * shape[d] + range.offset + i);
    places = std::move(next);
  }
  return {places.begin(), places.end()};
}

Piece piece_of_rank(const Way& way, int64_t rank, std::vector<float>& memory) {
  Piece piece;
  piece.name = "w";
  piece.shape = kShape;
  piece.box = box_of(way, rank);
  piece.block_shape = way.block_shape;
  piece.end = std::ssize(memory);
  piece.data = reinterpret_cast<std::byte*>(memory.data());
  return piece;
}

// Element i is i; of each rank's part the first third lies in one range, as data parallelism leaves it, the rest in another one.
Manifest save(const Way& way, const std::string& folder) {
  std::vector<Manifest> fragments;
  for (int64_t rank = 0; rank < way.ranks; ++rank) {
    std::vector<float> memory = places_of(way, rank);
    const Piece all = piece_of_rank(way, rank, memory);
    for (const bool is_first : {true, false}) {
      Piece piece = all;
      const int64_t third = all.end / 3;
      (is_first ? piece.end : piece.begin) = third;
      if (!is_first) piece.data += third * 4;
      fragments.emplace_back();
      write_shard(folder, concat("f-", rank, is_first ? "-a" : "-b"), {piece}, fragments.back());
    }
  }
  const Manifest merged = merge(fragments);
  CHECK(parse_manifest(print(merged), "F") == merged);
  return merged;
}

TEST_CASE("a weight that was saved in some blocks, or in none, is loaded into any others, bit for bit") {
  for (size_t from = 0; from < kWays.size(); ++from) {
    const testing::MemoryFolder folder;
    const Manifest manifest = save(kWays[from], folder.path());
    CHECK(verify(manifest, folder.path()).empty());
    for (size_t to = 0; to < kWays.size(); ++to) {
      CAPTURE(from);
      CAPTURE(to);
      uint64_t digest = 0;
      for (int64_t rank = 0; rank < kWays[to].ranks; ++rank) {
        const std::vector<float> expected = places_of(kWays[to], rank);
        std::vector<float> memory(expected.size(), -1);
        Piece piece = piece_of_rank(kWays[to], rank, memory);
        piece.begin = 5;  // a range of the box
        piece.data += 5 * 4;
        load(manifest, folder.path(), {piece});
        for (size_t i = 0; i < memory.size(); ++i) REQUIRE(memory[i] == (i < 5 ? -1 : expected[i]));
        std::vector<float> whole = expected;
        digest += digest_of(piece_of_rank(kWays[to], rank, whole));
      }
      std::vector<float> one = places_of(kWays[0], 0);
      CHECK(digest == digest_of(piece_of_rank(kWays[0], 0, one)));
    }
  }
}

TEST_CASE("boxes of the same blocks are compared as they are, others run by run") {
  const testing::MemoryFolder folder;
  const Manifest manifest = save({2, {3, 8, 8}, 1}, folder.path());
  const auto count = [&](const Way& way) {
    std::vector<float> memory = places_of(way, 0);
    return comparable_pieces(manifest, {piece_of_rank(way, 0, memory)}).size();
  };
  CHECK(count({4, {3, 8, 8}, 1}) == 1);
  CHECK(count({1}) == 1);
  CHECK(count({4, {2, 12, 8}, 1}) == 2);
  CHECK(count({2, {24, 2, 4}, 2}) == 48);
  CHECK(count({2, {}, 0}) == 1);
}

}  // namespace
}  // namespace sfsdp::train::checkpoint::comparable_test

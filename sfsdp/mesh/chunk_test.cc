// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/mesh/chunk.h"

#include <doctest/doctest.h>

#include <vector>

namespace sfsdp::chunk_test {

namespace {

std::vector<Chunk> chunks(int64_t n, int64_t world) {
  std::vector<Chunk> all;
  for (int64_t index = 0; index < world; ++index) all.push_back(chunk_of(n, world, index));
  return all;
}

}  // namespace

// Expected values: torch.arange(n).chunk(world), missing pieces taken as empty at n.
TEST_CASE("chunks are torch.chunk's: ceil first, then a shorter one, then empty ones at offset n") {
  CHECK(chunks(8, 4) == std::vector<Chunk>{{0, 2}, {2, 2}, {4, 2}, {6, 2}});
  CHECK(chunks(5, 4) == std::vector<Chunk>{{0, 2}, {2, 2}, {4, 1}, {5, 0}});
  CHECK(chunks(7, 3) == std::vector<Chunk>{{0, 3}, {3, 3}, {6, 1}});
  CHECK(chunks(2, 4) == std::vector<Chunk>{{0, 1}, {1, 1}, {2, 0}, {2, 0}});
  CHECK(chunks(0, 2) == std::vector<Chunk>{{0, 0}, {0, 0}});
  CHECK(chunks(6, 1) == std::vector<Chunk>{{0, 6}});
}

TEST_CASE("chunks of every small n and world lie side by side and cover n once") {
  for (int64_t world = 1; world <= 9; ++world) {
    for (int64_t n = 0; n <= 40; ++n) {
      int64_t end = 0;
      for (const Chunk& chunk : chunks(n, world)) {
        CHECK(chunk.offset == end);
        CHECK(chunk.length >= 0);
        CHECK(chunk.length <= padded_length(n, world) / world);
        end += chunk.length;
      }
      CHECK(end == n);
    }
  }
}

TEST_CASE("the padded length is the smallest multiple of world that holds n") {
  CHECK(padded_length(0, 4) == 0);
  CHECK(padded_length(1, 4) == 4);
  CHECK(padded_length(8, 4) == 8);
  CHECK(padded_length(9, 4) == 12);
}

TEST_CASE("an index outside the world is an internal error") {
  CHECK_THROWS_AS(chunk_of(4, 2, 2), InternalError);
  CHECK_THROWS_AS(chunk_of(4, 0, 0), InternalError);
}

}  // namespace sfsdp::chunk_test

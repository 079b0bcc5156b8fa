// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/offsets.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace sfsdp::plan::offsets_test {
namespace {

Buffer buffer(int64_t bytes, int64_t first, int64_t last) {
  return {.value = nullptr, .bytes = bytes, .first = first, .last = last, .offset = -1};
}

int64_t below(std::mt19937_64& rng, int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); }

// Two buffers that are alive at once and share an address, or one outside of the arena: every pair is looked at.
bool is_wrong(const std::vector<Buffer>& buffers, int64_t arena) {
  for (const Buffer& a : buffers) {
    if (a.offset < 0 || a.offset + a.bytes > arena) return true;
    for (const Buffer& b : buffers)
      if (&a != &b && a.first <= b.last && b.first <= a.last && a.offset < b.offset + b.bytes &&
          b.offset < a.offset + a.bytes)
        return true;
  }
  return false;
}

// The smallest arena there is: some order puts every buffer of an optimal plan at the lowest free address.
int64_t optimum(std::vector<Buffer> buffers) {
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  int64_t best = std::numeric_limits<int64_t>::max();
  do {
    int64_t arena = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      Buffer& b = buffers[order[k]];
      b.offset = 0;
      for (size_t again = 0; again < k; ++again)
        for (size_t j = 0; j < k; ++j) {
          const Buffer& o = buffers[order[j]];
          if (b.first <= o.last && o.first <= b.last && b.offset < o.offset + o.bytes && o.offset < b.offset + b.bytes)
            b.offset = o.offset + o.bytes;
        }
      arena = std::max(arena, b.offset + b.bytes);
    }
    best = std::min(best, arena);
  } while (std::ranges::next_permutation(order).found);
  return best;
}

TEST_CASE("offsets: largest first would leave a gap, the skyline does not") {
  // Largest first: 4 at 0, 3 at 0, 2 on the 3, and 1 finds 0-4 and 3-5 taken. 5 are alive at positions 1 and 3.
  std::vector<Buffer> buffers = {buffer(2, 0, 2), buffer(3, 1, 1), buffer(1, 2, 4), buffer(4, 3, 3)};
  const int64_t arena = assign_offsets(buffers);
  CHECK(arena == 5);
  CHECK_FALSE(is_wrong(buffers, arena));
}

TEST_CASE("offsets: nothing, one buffer, buffers side by side and one after another") {
  std::vector<Buffer> none;
  CHECK(assign_offsets(none) == 0);
  std::vector<Buffer> one = {buffer(256, 3, 9)};
  CHECK(assign_offsets(one) == 256);
  CHECK(one[0].offset == 0);
  std::vector<Buffer> chain = {buffer(256, 0, 1), buffer(512, 1, 2), buffer(256, 2, 3), buffer(512, 3, 4)};
  CHECK(assign_offsets(chain) == 768);
  CHECK_FALSE(is_wrong(chain, 768));
}

TEST_CASE("offsets: lifetimes that nest lose nothing") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 rng(seed);
    std::vector<Buffer> buffers;
    std::vector<std::pair<int64_t, int64_t>> open = {{0, 1000}};
    while (!open.empty()) {
      const auto [first, last] = open.back();
      open.pop_back();
      buffers.push_back(buffer(256 * (1 + below(rng, 40)), first, last));
      // Children side by side in it, with gaps.
      for (int64_t at = first + below(rng, 5); at < last;) {
        const int64_t end = std::min(at + below(rng, (last - first) / 2 + 1), last);
        if (end - at < last - first) open.emplace_back(at, end);
        at = end + 1 + below(rng, 50);
      }
    }
    std::ranges::shuffle(buffers, rng);
    CAPTURE(seed);
    const int64_t arena = assign_offsets(buffers);
    CHECK(arena == live_peak(buffers).bytes);
    CHECK_FALSE(is_wrong(buffers, arena));
  }
}

TEST_CASE("offsets: random lifetimes never overlap and stay near the smallest arena there is") {
  int64_t sum = 0, best = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 rng(seed);
    std::vector<Buffer> buffers;
    for (int i = 0; i < 6; ++i) {
      const int64_t first = below(rng, 8);
      buffers.push_back(buffer(1 + below(rng, 9), first, first + below(rng, 5)));
    }
    const int64_t smallest = optimum(buffers), arena = assign_offsets(buffers);
    CAPTURE(seed);
    CHECK_FALSE(is_wrong(buffers, arena));
    CHECK(arena >= smallest);
    sum += arena;
    best += smallest;
  }
  CHECK(static_cast<double>(sum) <= 1.02 * static_cast<double>(best));
}

TEST_CASE("offsets: a full rectangle that was cut to pieces is put together again, nearly") {
  double sum = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 rng(seed);
    // Pieces of time × bytes; every position has all bytes alive.
    struct Piece {
      int64_t first, last, bytes;
    };
    const int64_t height = 1 << 20;
    std::vector<Piece> pieces = {{0, 4095, height}};
    for (int cut = 0; cut < 300; ++cut) {
      const auto i = static_cast<size_t>(below(rng, static_cast<int64_t>(pieces.size())));
      const Piece p = pieces[i];
      const bool in_time = below(rng, 2) == 0;
      if (in_time && p.last > p.first) {
        const int64_t at = p.first + below(rng, p.last - p.first);
        pieces[i].last = at;
        pieces.push_back({at + 1, p.last, p.bytes});
      } else if (p.bytes > 1) {
        const int64_t at = 1 + below(rng, p.bytes - 1);
        pieces[i].bytes = at;
        pieces.push_back({p.first, p.last, p.bytes - at});
      }
    }
    std::vector<Buffer> buffers;
    for (const Piece& p : pieces) buffers.push_back(buffer(p.bytes, p.first, p.last));
    std::ranges::shuffle(buffers, rng);
    CAPTURE(seed);
    const int64_t arena = assign_offsets(buffers);
    CHECK(live_peak(buffers).bytes == height);
    CHECK_FALSE(is_wrong(buffers, arena));
    sum += static_cast<double>(arena) / static_cast<double>(height);
    std::vector<Buffer> again = buffers;
    CHECK(assign_offsets(again) == arena);
    for (size_t k = 0; k < buffers.size(); ++k) CHECK(again[k].offset == buffers[k].offset);
  }
  CHECK(sum / 50 <= 1.15);
}

}  // namespace
}  // namespace sfsdp::plan::offsets_test

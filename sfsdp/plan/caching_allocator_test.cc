// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/caching_allocator.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

namespace sfsdp::plan::caching_allocator_test {
namespace {

using Segments = CachingAllocator::Segments;
constexpr int64_t kMiB = 1 << 20;

TEST_CASE("caching allocator: sizes are rounded, and each size has its segment") {
  CachingAllocator a(Segments::Fixed);
  a.allocate(0, 0);
  CHECK(a.allocated() == 512);
  CHECK(a.reserved() == 2 * kMiB);
  a.allocate(kMiB, 0);  // small still, and the segment has room for it
  CHECK(a.reserved() == 2 * kMiB);
  a.allocate(5 * kMiB, 0);
  CHECK(a.reserved() == 22 * kMiB);
  a.allocate(15 * kMiB, 0);  // what is left of the 20 MiB
  CHECK(a.reserved() == 22 * kMiB);
  a.allocate(11 * kMiB, 0);  // a segment of its own, of whole 2 MiB; the last one is no block of its own
  CHECK(a.reserved() == 34 * kMiB);
  CHECK(a.allocated() == 512 + 33 * kMiB);
}

TEST_CASE("caching allocator: what one stream has freed, another does not get") {
  CachingAllocator a(Segments::Fixed);
  a.free(a.allocate(64 * kMiB, 0));
  CHECK(a.allocated() == 0);
  a.allocate(64 * kMiB, 0);
  CHECK(a.reserved() == 64 * kMiB);
  a.allocate(64 * kMiB, 1);
  CHECK(a.reserved() == 128 * kMiB);
  CHECK(a.reserved(0) == 64 * kMiB);
  CHECK(a.reserved(1) == 64 * kMiB);
  CHECK(a.reserved(2) == 0);
}

TEST_CASE("caching allocator: the smallest block that is large enough is split, neighbours join when freed") {
  CachingAllocator a(Segments::Fixed);
  const auto large = a.allocate(100 * kMiB, 0);
  const auto small = a.allocate(40 * kMiB, 0);
  a.free(large);
  a.free(small);
  const auto x = a.allocate(30 * kMiB, 0);  // of the 40 MiB; 10 are left
  const auto y = a.allocate(10 * kMiB, 0);  // these
  const auto z = a.allocate(100 * kMiB, 0);
  CHECK(a.reserved() == 140 * kMiB);
  a.free(x);
  a.free(y);
  a.free(z);
  a.allocate(40 * kMiB, 0);  // fits again only as one block
  CHECK(a.reserved() == 140 * kMiB);
  a.allocate(101 * kMiB, 0);
  CHECK(a.reserved() == 242 * kMiB);
  CHECK(a.peak_allocated() == 142 * kMiB);
}

TEST_CASE("caching allocator: a rest of at most 1 MiB stays with a large block of a fixed segment") {
  for (const auto segments : {Segments::Fixed, Segments::Expandable}) {
    CachingAllocator a(segments);
    a.free(a.allocate(20 * kMiB, 0));
    a.allocate(19 * kMiB, 0);
    CHECK(a.allocated() == (segments == Segments::Fixed ? 20 : 19) * kMiB);
  }
}

TEST_CASE("caching allocator: an expandable segment grows at its end, a fixed one never") {
  CachingAllocator expandable(Segments::Expandable), fixed(Segments::Fixed);
  for (CachingAllocator* a : {&expandable, &fixed}) {
    a->free(a->allocate(30 * kMiB, 0));
    a->allocate(50 * kMiB, 0);
  }
  CHECK(expandable.reserved() == 60 * kMiB);  // 40, then 20 more
  CHECK(fixed.reserved() == 80 * kMiB);
}

TEST_CASE("caching allocator: the end of an expandable segment is taken last, and a hole in it is not closed") {
  CachingAllocator a(Segments::Expandable);
  const auto first = a.allocate(60 * kMiB, 0);
  const auto second = a.allocate(20 * kMiB, 0);
  const auto end = a.allocate(40 * kMiB, 0);
  a.free(first);
  a.free(end);
  a.allocate(40 * kMiB, 0);  // from the hole of 60 MiB, although 40 at the end fit better
  a.allocate(50 * kMiB, 0);  // 40 at the end and 20 more; 20 of the hole stay unused
  CHECK(a.reserved() == 140 * kMiB);
  CHECK(a.allocated() == 110 * kMiB);
  a.free(second);
}

TEST_CASE("caching allocator: what it holds when it has given back all that is free, by segment or by page") {
  CachingAllocator fixed(Segments::Fixed);
  const auto large = fixed.allocate(100 * kMiB, 0);
  fixed.free(large);
  CHECK(fixed.peak_held() == 100 * kMiB);
  const auto part = fixed.allocate(60 * kMiB, 0);   // in the segment of 100
  const auto other = fixed.allocate(50 * kMiB, 0);  // one of its own
  CHECK(fixed.peak_held() == 150 * kMiB);
  fixed.free(part);  // 50 are held now
  fixed.free(other);
  fixed.allocate(30 * kMiB, 1);
  fixed.allocate(90 * kMiB, 1);
  CHECK(fixed.reserved() == 270 * kMiB);
  CHECK(fixed.peak_held() == 150 * kMiB);

  CachingAllocator expandable(Segments::Expandable);
  const auto first = expandable.allocate(70 * kMiB, 0);   // pages 0 to 3 of 20 MiB
  const auto second = expandable.allocate(30 * kMiB, 0);  // pages 3 and 4
  CHECK(expandable.peak_held() == 100 * kMiB);
  expandable.free(first);             // 40 are held: the pages of the second
  expandable.allocate(55 * kMiB, 1);  // three pages
  CHECK(expandable.peak_held() == 100 * kMiB);
  expandable.allocate(5 * kMiB, 0);  // page 0
  CHECK(expandable.peak_held() == 120 * kMiB);
  expandable.free(second);
  CHECK(expandable.peak_held() == 120 * kMiB);
}

TEST_CASE(
    "caching allocator: where the room is full, what no tensor has a part of goes back to the device, of all streams") {
  CachingAllocator a(Segments::Fixed, 200 * kMiB);
  const auto large = a.allocate(100 * kMiB, 0);
  const auto part = a.allocate(60 * kMiB, 1);
  a.free(large);
  a.free(part);
  const auto kept = a.allocate(30 * kMiB, 1);  // in the segment of 60, which stays
  CHECK(a.traffic().retries == 0);
  a.allocate(120 * kMiB, 1);  // 160 are there: 100 go back
  CHECK(a.traffic().retries == 1);
  CHECK(a.traffic().given_bytes == 100 * kMiB);
  CHECK(a.traffic().asked_bytes == 280 * kMiB);
  CHECK(a.reserved() == 180 * kMiB);
  CHECK(a.reserved(0) == 0);
  a.free(kept);
  a.allocate(60 * kMiB, 1);  // what was given back has left what stayed as it was
  CHECK(a.traffic().retries == 1);
  a.allocate(90 * kMiB, 0);  // nothing is free: it does not fit, and is above the room
  CHECK(a.traffic().retries == 2);
  CHECK(a.traffic().given_bytes == 100 * kMiB);
  CHECK(a.reserved() == 270 * kMiB);
  CHECK(a.peak_held() == 270 * kMiB);
}

TEST_CASE("caching allocator: pages that were given back leave holes, which are filled before the end grows") {
  CachingAllocator a(Segments::Expandable, 200 * kMiB);
  const auto first = a.allocate(70 * kMiB, 0);   // 0 to 70
  const auto second = a.allocate(30 * kMiB, 0);  // 70 to 100
  const auto third = a.allocate(60 * kMiB, 0);   // 100 to 160
  a.free(first);
  a.free(third);
  a.allocate(110 * kMiB, 1);  // needs 120; the pages from 0 to 60, and all above 100, go back: what is left has 40
  CHECK(a.traffic().retries == 1);
  CHECK(a.traffic().given_bytes == 120 * kMiB);
  CHECK(a.reserved(0) == 40 * kMiB);
  CHECK(a.reserved() == 160 * kMiB);
  const auto in_hole = a.allocate(30 * kMiB, 0);  // 0 to 40 are asked for again; 10 of them stay free
  CHECK(a.reserved(0) == 80 * kMiB);
  CHECK(a.traffic().asked_bytes == (160 + 120 + 40) * kMiB);
  // 30 to 40, 20 of a hole, 10 that were never given back: these are one block, for 20 MiB more.
  const auto over_hole = a.allocate(40 * kMiB, 0);
  CHECK(a.reserved(0) == 100 * kMiB);
  CHECK(a.traffic().retries == 2);  // 20 more than 200: nothing was free in whole pages
  CHECK(a.traffic().given_bytes == 120 * kMiB);
  a.free(in_hole);
  a.free(over_hole);
  a.free(second);
  CHECK(a.reserved(0) == 100 * kMiB);
  a.allocate(100 * kMiB, 0);  // all of it is one block again
  CHECK(a.reserved(0) == 100 * kMiB);
}

TEST_CASE("caching allocator: a room that is never full changes nothing, one that is changes no tensor") {
  for (const auto segments : {Segments::Fixed, Segments::Expandable}) {
    CachingAllocator endless(segments), wide(segments, 4000 * kMiB), tight(segments, 260 * kMiB);
    uint64_t random = 7;
    const auto draw = [&](uint64_t below) {
      random = random * 6364136223846793005U + 1442695040888963407U;
      return (random >> 33U) % below;
    };
    std::vector<std::array<CachingAllocator::Handle, 3>> alive;
    for (int i = 0; i < 4000; ++i) {
      if (alive.size() > 12 || (!alive.empty() && draw(2) == 0)) {
        const size_t gone = draw(alive.size());
        endless.free(alive[gone][0]);
        wide.free(alive[gone][1]);
        tight.free(alive[gone][2]);
        alive.erase(alive.begin() + static_cast<ptrdiff_t>(gone));
      } else {
        const auto bytes = static_cast<int64_t>(draw(8) == 0 ? draw(kMiB) : draw(24 * kMiB));
        const auto stream = static_cast<int>(draw(2));
        alive.push_back({endless.allocate(bytes, stream), wide.allocate(bytes, stream), tight.allocate(bytes, stream)});
      }
      REQUIRE(wide.reserved() == endless.reserved());
      if (segments == Segments::Expandable) REQUIRE(tight.allocated() == endless.allocated());
      REQUIRE(tight.reserved() == tight.traffic().asked_bytes - tight.traffic().given_bytes);
    }
    CHECK(endless.traffic().given_bytes == 0);
    CHECK(wide.traffic().retries == 0);
    CHECK(tight.traffic().retries > 0);
    CHECK(tight.traffic().given_bytes > 0);
  }
}

}  // namespace
}  // namespace sfsdp::plan::caching_allocator_test

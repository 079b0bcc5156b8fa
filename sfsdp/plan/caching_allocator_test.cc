// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/caching_allocator.h"

#include <doctest/doctest.h>

namespace sfsdp::plan {
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

}  // namespace
}  // namespace sfsdp::plan

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/common_runs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace sfsdp::plan::common_runs_test {
namespace {

// The place in the whole tensor of each element of a box, in the box's order: an odometer, element by element.
std::vector<int64_t> places_of(const std::vector<int64_t>& shape, const std::vector<Chunk>& dims) {
  std::vector<int64_t> places, index(shape.size(), 0);
  for (const Chunk& chunk : dims)
    if (chunk.length == 0) return {};
  for (;;) {
    int64_t place = 0;
    for (size_t d = 0; d < shape.size(); ++d) place = place * shape[d] + dims[d].offset + index[d];
    places.push_back(place);
    size_t d = shape.size();
    while (d > 0 && ++index[d - 1] == dims[d - 1].length) index[--d] = 0;
    if (d == 0) return places;
  }
}

bool holds(Chunk range, int64_t at) { return at >= range.offset && at < range.offset + range.length; }

std::vector<BoxRun> naive(const std::vector<int64_t>& shape, const Box& first, const Box& second) {
  const std::vector<int64_t> a = places_of(shape, first.dims), b = places_of(shape, second.dims);
  std::vector<BoxRun> runs;
  for (int64_t i = 0; i < std::ssize(a); ++i)
    for (int64_t j = 0; j < std::ssize(b); ++j) {
      if (a[static_cast<size_t>(i)] != b[static_cast<size_t>(j)] || !holds(first.flat, i) || !holds(second.flat, j))
        continue;
      if (!runs.empty() && runs.back().first + runs.back().count == i && runs.back().second + runs.back().count == j)
        ++runs.back().count;
      else
        runs.push_back({i, j, 1});
    }
  return runs;
}

}  // namespace

TEST_CASE("common runs of two boxes are those that a loop over all pairs of elements finds, joined as far as they go") {
  std::mt19937 random(7);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
  const auto part_of = [&](int64_t size) {
    const int64_t offset = std::min(below(size + 1), below(size + 1));  // most parts are large: two of them meet
    return Chunk{offset, std::max(below(size - offset + 1), below(size - offset + 1))};
  };
  int64_t with_runs = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::vector<int64_t> shape;
    for (int64_t d = below(5); d > 0; --d) shape.push_back(below(20) == 0 ? 0 : 1 + below(5));
    const auto box_of = [&] {
      Box box;
      for (const int64_t size : shape) box.dims.push_back(below(2) == 0 ? Chunk{0, size} : part_of(size));
      const int64_t elements = elements_of(box.dims);
      box.flat = below(2) == 0 ? Chunk{0, elements} : part_of(elements);
      return box;
    };
    const Box first = box_of(), second = below(8) == 0 ? first : box_of();
    const std::vector<BoxRun> expected = naive(shape, first, second);
    CAPTURE(to_string(first.dims));
    CAPTURE(first.flat.offset);
    CAPTURE(first.flat.length);
    CAPTURE(to_string(second.dims));
    CAPTURE(second.flat.offset);
    CAPTURE(second.flat.length);
    std::vector<BoxRun> got;
    for_each_run(first, second, [&](const BoxRun& run) { got.push_back(run); });
    REQUIRE(got == expected);
    const Chunk range = CommonRuns(first, second).range();
    REQUIRE(range.length == (expected.empty() ? 0 : expected.back().first + expected.back().count - expected[0].first));
    if (!expected.empty()) REQUIRE(range.offset == expected[0].first);
    with_runs += expected.size() > 1;
  }
  CHECK(with_runs > 1000);
}

TEST_CASE("common runs: a part at the end of a tensor of 2^58 elements is found at once") {
  const std::vector<int64_t> shape = {1 << 20, 1 << 19, 1 << 19};
  Box column = whole_box(shape), last = whole_box(shape, {(int64_t{1} << 58) - (1 << 19), 1 << 19});
  column.dims[2] = {5, 7};
  column.flat = {0, elements_of(column.dims)};
  CommonRuns runs(last, column);
  CHECK(runs.next() == BoxRun{(int64_t{1} << 58) - (1 << 19) + 5, ((int64_t{1} << 39) - 1) * 7, 7});
  CHECK(runs.next() == std::nullopt);
}

TEST_CASE("a box as text") {
  CHECK(to_string(std::vector<Chunk>{{0, 12}, {10, 10}}) == "[0:12,10:20]");
  CHECK(to_string(std::vector<Chunk>{}) == "[]");
  CHECK(whole_box({2, 3}).flat == Chunk{0, 6});
  CHECK(whole_box({}).flat == Chunk{0, 1});
}

}  // namespace sfsdp::plan::common_runs_test

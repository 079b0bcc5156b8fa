// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/archive_values.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/exported/read_values.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::train::archive_values_test {
namespace {

// The place in the whole of each element of a box, in its order: element by element.
std::vector<int64_t> elements_in(const std::vector<int64_t>& shape, const std::vector<Chunk>& dims) {
  std::vector<int64_t> places = {0};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t place : places)
      for (int64_t i = 0; i < dims[d].length; ++i) next.push_back(place * shape[d] + dims[d].offset + i);
    places = std::move(next);
  }
  return places;
}

std::vector<double> whole_of(const exported::Program& program, const exported::StateTensor& t) {
  std::vector<double> all(static_cast<size_t>(ir::Type::tensor(t.dtype, t.sizes).numel()));
  read_archive_values(program.archive, t, plan::whole_box(t.sizes), std::as_writable_bytes(std::span(all)),
                      ir::DType::f64);
  return all;
}

// Reads ranges of drawn boxes.
//   all: the tensor's elements, row by row
void expect_boxes_of(const exported::Program& program, const exported::StateTensor& t, const std::vector<double>& all,
                     std::mt19937& random) {
  CAPTURE(t.name);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
  for (int trial = 0; trial < 20; ++trial) {
    plan::Box box;
    for (const int64_t size : t.sizes) {
      const int64_t offset = below(2) == 0 ? 0 : below(size);
      box.dims.push_back({offset, 1 + below(size - offset)});
    }
    const std::vector<int64_t> places = elements_in(t.sizes, box.dims);
    box.flat.offset = below(2) == 0 ? 0 : below(std::ssize(places));
    box.flat.length = std::ssize(places) - box.flat.offset;
    std::vector<double> got(static_cast<size_t>(box.flat.length), -1), expected;
    for (int64_t i = box.flat.offset; i < std::ssize(places); ++i)
      expected.push_back(all[static_cast<size_t>(places[static_cast<size_t>(i)])]);
    read_archive_values(program.archive, t, box, std::as_writable_bytes(std::span(got)), ir::DType::f64);
    CHECK(got == expected);
    if (t.dtype != ir::DType::f32) continue;
    std::vector<float> same(got.size());
    read_archive_values(program.archive, t, box, std::as_writable_bytes(std::span(same)), ir::DType::f32);
    CHECK(std::ranges::equal(same, expected));
  }
}

}  // namespace

TEST_CASE("a range of any box of a tensor comes out of an archive, also of one that lies column by column") {
  std::mt19937 random(3);
  for (const char* name : {"decoder.pt2", "convolutions.pt2", "half.pt2"}) {
    const exported::Program program =
        exported::read_program(testing::source_dir() + "/tests/fixtures/exported/" + name);
    for (exported::StateTensor t : program.state) {
      if (t.dtype != ir::DType::f32 && t.dtype != ir::DType::bf16 && t.dtype != ir::DType::f16) continue;
      const std::vector<double> all = whole_of(program, t);
      expect_boxes_of(program, t, all, random);
      if (t.sizes.size() != 2 || t.sizes[0] == 1 || t.sizes[1] == 1) continue;
      // the same bytes as what they would be the transposed matrix of
      std::swap(t.sizes[0], t.sizes[1]);
      std::swap(t.strides[0], t.strides[1]);
      CHECK_FALSE(exported::is_row_major(t));
      std::vector<double> turned;
      for (int64_t row = 0; row < t.sizes[0]; ++row)
        for (int64_t column = 0; column < t.sizes[1]; ++column)
          turned.push_back(all[static_cast<size_t>(column * t.sizes[0] + row)]);
      expect_boxes_of(program, t, turned, random);
    }
  }
}

}  // namespace sfsdp::train::archive_values_test

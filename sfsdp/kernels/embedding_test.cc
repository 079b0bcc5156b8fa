// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/embedding.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/half.h"
#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels::embedding_test {
namespace {

struct Data {
  int64_t rows, width, weights;
  std::vector<int64_t> ids;
  std::vector<float> grad;
  std::vector<uint16_t> narrow;
};

Data make(int64_t rows, int64_t width, int64_t weights) {
  Data d{rows, width, weights, {}, {}, {}};
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < rows; ++i) d.ids.push_back(static_cast<int64_t>(random() % static_cast<uint32_t>(weights)));
  for (int64_t i = 0; i < rows * width; ++i) {
    d.narrow.push_back(to_bf16(normal(random)));
    d.grad.push_back(from_bf16(d.narrow.back()));
  }
  return d;
}

}  // namespace

TEST_CASE("embedding: sums of the rows of each id, zeros elsewhere, whatever lay there before") {
  for (const int64_t width : {1, 16, 33})
    for (const int64_t weights : {1, 5, 300})
      for (const int64_t padding : {-1, 0, 4})
        for (const bool narrow : {false, true})
          for (const bool narrow_out : {false, true}) {
            CAPTURE(width);
            CAPTURE(weights);
            CAPTURE(padding);
            const Data d = make(50, width, weights);
            const auto count = static_cast<size_t>(weights * width);
            std::vector<float> out(count, std::numeric_limits<float>::quiet_NaN());
            std::vector<uint16_t> out_narrow(count, 0x7fc0);
            const EmbeddingGrad call = {.rows = 50,
                                        .width = width,
                                        .num_weights = weights,
                                        .padding = padding,
                                        .ids = d.ids.data(),
                                        .grad = narrow ? static_cast<const void*>(d.narrow.data()) : d.grad.data(),
                                        .grad_dtype = narrow ? ir::DType::bf16 : ir::DType::f32,
                                        .out = narrow_out ? static_cast<void*>(out_narrow.data()) : out.data(),
                                        .out_dtype = narrow_out ? ir::DType::bf16 : ir::DType::f32};
            std::vector<int64_t> order;
            embedding_backward(call, order);
            std::vector<double> expected(count, 0.0);
            for (int64_t r = 0; r < 50; ++r) {
              const int64_t id = d.ids[static_cast<size_t>(r)];
              for (int64_t i = 0; i < width && id != padding; ++i)
                expected[static_cast<size_t>(id * width + i)] += d.grad[static_cast<size_t>(r * width + i)];
            }
            for (size_t i = 0; i < count; ++i) {
              const double got = narrow_out ? from_bf16(out_narrow[i]) : out[i];
              REQUIRE(std::abs(got - expected[i]) <= (narrow_out ? 0x1p-8 * std::abs(expected[i]) : 0) + 4e-6);
            }
          }
}

TEST_CASE("embedding: the gradient of some rows of a table is these of the whole's; ids of others are passed over") {
  const Data d = make(50, 16, 30);
  std::vector<float> whole(30 * 16), part(10 * 16, std::numeric_limits<float>::quiet_NaN());
  std::vector<int64_t> order;
  EmbeddingGrad call = {.rows = 50,
                        .width = 16,
                        .num_weights = 30,
                        .padding = 14,
                        .ids = d.ids.data(),
                        .grad = d.grad.data(),
                        .out = whole.data()};
  embedding_backward(call, order);
  call.num_weights = 10;
  call.whole = 30;
  call.out = part.data();
  for (const int64_t first : {0, 10, 20}) {
    CAPTURE(first);
    call.first = first;
    embedding_backward(call, order);
    CHECK(std::equal(part.begin(), part.end(), whole.begin() + first * 16));
  }
}

TEST_CASE("embedding: every family of processors has the same bits, and an id that is no row is refused") {
  const Data d = make(40, 37, 9);
  std::vector<float> first(37), out(37);
  std::vector<int64_t> rows = {3, 5, 8, 39}, order;
  EmbeddingGrad call = {.rows = 40,
                        .width = 37,
                        .num_weights = 9,
                        .padding = -1,
                        .ids = d.ids.data(),
                        .grad = d.narrow.data(),
                        .grad_dtype = ir::DType::bf16,
                        .out = first.data(),
                        .out_dtype = ir::DType::f32};
  families()[0].embedding_row(call, rows.data(), 4, 0);
  for (const Family& family : families()) {
    CAPTURE(family.name);
    call.out = out.data();
    family.embedding_row(call, rows.data(), 4, 0);
    CHECK(out == first);
  }
  std::vector<float> whole(9 * 37);
  call.out = whole.data();
  for (const int64_t wrong : {-1, 9}) {
    std::vector<int64_t> ids = d.ids;
    ids[7] = wrong;
    call.ids = ids.data();
    CHECK_THROWS(embedding_backward(call, order));
  }
}

}  // namespace sfsdp::kernels::embedding_test

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/rms_norm.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "sfsdp/base/half.h"
#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels::rms_norm_test {
namespace {

// Numbers as floats, and as the kernel reads them.
struct Numbers {
  std::vector<float> wide;
  std::vector<uint16_t> narrow;  // empty: the kernel reads `wide`

  Numbers(int64_t count, bool half, std::mt19937& random, float middle = 0) : wide(static_cast<size_t>(count)) {
    std::normal_distribution<float> normal(middle, 1);
    for (float& x : wide) x = normal(random);
    if (half)
      for (float& x : wide) {
        narrow.push_back(to_bf16(x));
        x = from_bf16(narrow.back());
      }
  }
  void* data() { return narrow.empty() ? static_cast<void*>(wide.data()) : narrow.data(); }
  double operator[](int64_t i) const {
    const auto at = static_cast<size_t>(i);
    return narrow.empty() ? wide[at] : from_bf16(narrow[at]);
  }
};

struct Case {
  int64_t rows, width;
  bool half, half_weight, weighted, residual;
};

// As float64 has it, within units of the last place of what is stored: of the largest number that is added up for one.
void expect_exact(const Case& c, const Family& family) {
  CAPTURE(family.name);
  CAPTURE(c.rows);
  CAPTURE(c.width);
  CAPTURE(c.half);
  CAPTURE(c.half_weight);
  std::mt19937 random(7);
  const int64_t count = c.rows * c.width;
  Numbers x(count, c.half, random), grad(count, c.half, random), weight(c.width, c.half_weight, random, 1),
      residual(count, false, random), y(count, c.half, random), grad_x(count, c.half, random),
      grad_weight(c.width, c.half_weight, random);
  std::vector<float> rstd(static_cast<size_t>(c.rows));
  RmsNorm call = {.rows = c.rows,
                  .width = c.width,
                  .dtype = c.half ? ir::DType::bf16 : ir::DType::f32,
                  .weight_dtype = c.half_weight ? ir::DType::bf16 : ir::DType::f32,
                  .eps = 1e-5,
                  .x = x.data(),
                  .weight = c.weighted ? weight.data() : nullptr,
                  .y = y.data(),
                  .rstd = rstd.data(),
                  .grad = grad.data(),
                  .residual = c.residual ? static_cast<const float*>(residual.data()) : nullptr,
                  .grad_x = grad_x.data()};
  std::vector<float> parts(static_cast<size_t>(norm_blocks(call) * c.width));
  call.grad_weight = parts.data();
  family.rms_norm(call, 0, norm_blocks(call));
  family.rms_norm_backward(call, 0, norm_blocks(call));
  rms_norm_weight(call, grad_weight.data());

  const double stored = c.half ? 0x1p-8 : 1.5e-6, stored_weight = c.half_weight ? 0x1p-8 : 1.5e-6;
  std::vector<double> of_weight(static_cast<size_t>(c.width)), size_of_weight(of_weight);
  for (int64_t r = 0; r < c.rows; ++r) {
    double squares = 0, dot = 0, sizes = 0;
    const auto weighted = [&](int64_t i) { return grad[r * c.width + i] * (c.weighted ? weight[i] : 1); };
    for (int64_t i = 0; i < c.width; ++i) {
      squares += x[r * c.width + i] * x[r * c.width + i];
      dot += weighted(i) * x[r * c.width + i];
      sizes += std::abs(weighted(i) * x[r * c.width + i]);
    }
    const double of_row = 1 / std::sqrt(squares / static_cast<double>(c.width) + 1e-5);
    REQUIRE(std::abs(rstd[static_cast<size_t>(r)] / of_row - 1) <= 1e-6);
    for (int64_t i = 0; i < c.width; ++i) {
      const int64_t at = r * c.width + i;
      const double normal = x[at] * of_row, expected = normal * (c.weighted ? weight[i] : 1);
      REQUIRE(std::abs(y[at] - expected) <= stored * std::abs(expected));
      const double slope = x[at] * of_row * of_row * of_row / static_cast<double>(c.width),
                   other = c.residual ? residual[at] : 0;
      const double of_x = other + weighted(i) * of_row - slope * dot;
      const double size = std::abs(other) + std::abs(weighted(i) * of_row) + std::abs(slope) * sizes;
      REQUIRE(std::abs(grad_x[at] - of_x) <= 1.5e-6 * size + stored * std::abs(of_x));
      of_weight[static_cast<size_t>(i)] += grad[at] * normal;
      size_of_weight[static_cast<size_t>(i)] += std::abs(grad[at] * normal);
    }
  }
  for (int64_t i = 0; i < c.width; ++i) {
    const double expected = of_weight[static_cast<size_t>(i)];
    REQUIRE(std::abs(grad_weight[i] - expected) <=
            1.5e-6 * size_of_weight[static_cast<size_t>(i)] + stored_weight * std::abs(expected));
  }
}

}  // namespace

TEST_CASE("RMSNorm: float64's results and gradients, on every family of processors that this one is of") {
  for (const Family& family : families())
    for (const int64_t width : {1, 5, 16, 33, 768, 5000})
      for (const int64_t rows : {1, 3, 64, 130}) {
        if (rows * width > 200'000) continue;
        for (const bool half : {false, true})
          for (const bool half_weight : {false, true})
            expect_exact({rows, width, half, half_weight, width != 33, rows % 2 == 1}, family);
      }
}

// Results may lie where operands do: an element is written after its last read.
TEST_CASE("RMSNorm: in place, and without the gradients that nobody asks for") {
  for (const Family& family : families()) {
    CAPTURE(family.name);
    std::mt19937 random(9);
    const int64_t rows = 70, width = 100;
    Numbers x(rows * width, false, random), grad(rows * width, false, random), weight(width, false, random, 1), y(x),
        grad_x(grad);
    std::vector<float> rstd(rows), again(rows), parts(2 * width);
    RmsNorm call = {.rows = rows,
                    .width = width,
                    .eps = 1e-6,
                    .x = x.data(),
                    .weight = weight.data(),
                    .y = y.data(),
                    .rstd = rstd.data()};
    call.grad = grad.data();
    call.grad_x = grad_x.data();
    call.grad_weight = parts.data();
    family.rms_norm(call, 0, 2);
    family.rms_norm_backward(call, 0, 2);
    RmsNorm in_place = call;
    Numbers copy = grad;
    in_place.grad = in_place.grad_x = copy.data();
    in_place.grad_weight = nullptr;
    family.rms_norm_backward(in_place, 0, 2);
    CHECK(copy.wide == grad_x.wide);
    Numbers whole = x;
    in_place.x = in_place.y = whole.data();
    in_place.rstd = again.data();
    family.rms_norm(in_place, 0, 2);
    CHECK(whole.wide == y.wide);
    CHECK(again == rstd);
    std::vector<float> alone(parts.size());
    RmsNorm weights = call;
    weights.grad_x = nullptr;
    weights.grad_weight = alone.data();
    family.rms_norm_backward(weights, 0, 2);
    CHECK(alone == parts);
  }
}

}  // namespace sfsdp::kernels::rms_norm_test

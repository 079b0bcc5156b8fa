// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <thread>

#include "sfsdp/exec/planned/openblas.h"

namespace sfsdp::exec {
namespace products_test {

// Root of the mean square, of the numbers' own.
double error_of(const at::Tensor& got, const at::Tensor& exact) {
  if (exact.numel() == 0) return 0;
  return ((got.to(at::kDouble) - exact).square().mean() / exact.square().mean()).sqrt().item<double>();
}

// A matrix laid out in one of the ways in which products meet it.
at::Tensor laid_out(int64_t rows, int64_t columns, int way, at::ScalarType dtype) {
  const auto options = at::TensorOptions(dtype);
  switch (way) {
    case 0: return at::randn({rows, columns}, options);
    case 1: return at::randn({columns, rows}, options).t();
    case 2: return at::randn({rows, columns + 5}, options).narrow(1, 2, columns);   // rows apart
    case 3: return at::randn({columns, rows + 3}, options).narrow(1, 1, rows).t();  // columns apart
    default: return at::randn({rows, 2 * columns}, options).as_strided({rows, columns}, {2 * columns, 2});
  }
}

// What the library may have of at::mm's error: both add up in longer chains than MKL, which at::mm is, oneDNN's have been up to 2.3
// times as far from the truth and OpenBLAS's up to 1.4 times, where MKL is nearest (docs/benchmarks.md, "Products by library").
double allowed(ProductKernel kernel) {
  return kernel == ProductKernel::OneDnn ? 2.3 : kernel == ProductKernel::OpenBlas ? 1.5 : 1.0;
}

std::vector<ProductKernel> others(ir::DType dtype) {
  std::vector<ProductKernel> kernels = product_kernels(dtype);
  kernels.erase(kernels.begin());
  return kernels;
}

TEST_CASE("each library's product is as near to the truth as LibTorch's, or as is said, however operands lie") {
  at::manual_seed(3);
  for (const auto dtype : {ir::DType::f32, ir::DType::f64}) {
    const at::ScalarType type = dtype == ir::DType::f32 ? at::kFloat : at::kDouble;
    for (const ProductKernel kernel : others(dtype)) {
      for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
               {5, 7, 3}, {64, 48, 33}, {130, 96, 512}, {1, 9, 4}, {9, 1, 4}, {33, 65, 1}, {1, 1, 1}, {17, 1, 300}}) {
        for (int way_a = 0; way_a < 5; ++way_a) {
          for (int way_b = 0; way_b < 5; ++way_b) {
            if (kernel == ProductKernel::OneDnn && (way_a > 1 || way_b > 1)) continue;  // it takes no others
            INFO(std::string(to_string(kernel)), " ", m, " ", n, " ", k, ", laid out ", way_a, " and ", way_b);
            const at::Tensor a = laid_out(m, k, way_a, type), b = laid_out(k, n, way_b, type);
            const at::Tensor sum = at::randn({m, n}, a.options()), both = sum.clone();
            const at::Tensor out = at::full({m, n}, std::numeric_limits<double>::quiet_NaN(), a.options());
            const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
            multiply(kernel, a, b, out, 0);
            multiply(kernel, a, b, both, 1);
            if (type == at::kDouble) {  // the exact one has an error of its own
              CHECK(error_of(out, exact) <= 1e-14);
              CHECK(error_of(both, exact + sum) <= 1e-14);
            } else {
              const double least = 3e-8;  // half a unit in the last place, where at::mm may be right by luck
              CHECK(error_of(out, exact) <= allowed(kernel) * error_of(at::mm(a, b), exact) + least);
              CHECK(error_of(both, exact + sum) <=
                    allowed(kernel) * error_of(at::addmm(sum, a, b), exact + sum) + least);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("each library's product of a model's shapes is as near to the truth as LibTorch's, or as is said") {
  at::manual_seed(5);
  const std::array<int64_t, 3> layers[] = {{512, 768, 768}, {512, 256, 768}, {512, 768, 2048}, {128, 4000, 768}};
  for (const ProductKernel kernel : others(ir::DType::f32)) {
    for (const auto& [tokens, n, k] : layers) {
      const at::Tensor x = at::randn({tokens, k}), w = at::randn({n, k}), dy = at::randn({tokens, n});
      for (const auto& [a, b] : {std::pair(x, w.t()), {dy, w}, {dy.t(), x}}) {
        INFO(std::string(to_string(kernel)), " ", tokens, " ", n, " ", k);
        const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble)), out = at::empty({a.size(0), b.size(1)});
        multiply(kernel, a, b, out, 0);
        CHECK(error_of(out, exact) <= allowed(kernel) * error_of(at::mm(a, b), exact));
      }
    }
  }
}

TEST_CASE("products of no elements, and sums of none") {
  for (const ProductKernel kernel : product_kernels(ir::DType::f32)) {
    if (kernel == ProductKernel::OneDnn) continue;
    INFO(std::string(to_string(kernel)));
    const at::Tensor out = at::full({3, 4}, 7.0), kept = out.clone();
    multiply(kernel, at::empty({3, 0}), at::empty({0, 4}), kept, 1);
    CHECK(at::equal(kept, out));
    multiply(kernel, at::empty({3, 0}), at::empty({0, 4}), out, 0);
    CHECK(at::equal(out, at::zeros({3, 4})));
    multiply(kernel, at::empty({0, 5}), at::empty({5, 4}), at::empty({0, 4}), 0);
    multiply(kernel, at::empty({3, 5}), at::empty({5, 0}), at::empty({3, 0}), 0);
  }
}

TEST_CASE("what is no number, or infinite, comes out as LibTorch has it") {
  for (const ProductKernel kernel : others(ir::DType::f32)) {
    INFO(std::string(to_string(kernel)));
    at::Tensor a = at::zeros({40, 50}), b = at::ones({50, 60});
    a[3][7] = std::numeric_limits<double>::infinity();
    a[4][0] = std::numeric_limits<double>::quiet_NaN();
    b[9][5] = std::numeric_limits<double>::infinity();  // times 0
    const at::Tensor out = at::empty({40, 60});
    multiply(kernel, a, b, out, 0);
    CHECK(at::equal(out.isnan(), at::mm(a, b).isnan()));
    CHECK(at::equal(out.isinf(), at::mm(a, b).isinf()));
  }
}

// So it may be named in a plan: the same numbers whatever else runs in the process.
TEST_CASE("OpenBLAS's product has the same bits from several threads at once, and writes nothing beside its result") {
  const OpenBlas* blas = OpenBlas::find();
  if (!blas) return;
  at::manual_seed(7);
  const at::Tensor a = at::randn({96, 200}), b = at::randn({200, 130}), alone = at::empty({96, 130});
  blas->multiply(a, b, alone, 0);
  std::vector<at::Tensor> outs;
  for (int i = 0; i < 4; ++i) outs.push_back(at::full({98 * 130}, -1.0));
  std::vector<std::thread> threads;
  for (const at::Tensor& out : outs)
    threads.emplace_back([&, out] {
      for (int round = 0; round < 20; ++round) blas->multiply(a, b, out.narrow(0, 130, 96 * 130).view({96, 130}), 0);
    });
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& out : outs) {
    CHECK(at::equal(out.narrow(0, 130, 96 * 130).view({96, 130}), alone));
    CHECK(at::all(out.narrow(0, 0, 130) == -1).item<bool>());
    CHECK(at::all(out.narrow(0, 97 * 130, 130) == -1).item<bool>());
  }
  const int before = at::get_num_threads();
  at::set_num_threads(2);  // rows, or columns, by two threads
  for (const bool wide : {false, true}) {
    const at::Tensor x = wide ? a : b.t(), y = wide ? b : a.t(), exact = at::mm(x.to(at::kDouble), y.to(at::kDouble));
    const at::Tensor out = at::full(exact.sizes(), -1.0);
    blas->multiply(x, y, out, 0);
    CHECK(error_of(out, exact) <= 1e-6);
  }
  at::set_num_threads(before);
}

TEST_CASE("OpenBLAS leaves LibTorch's products and the environment as they were; a library that is none is not taken") {
  const auto environment = [] {
    std::string text;
    for (const char* name : {"OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS"}) {
      const char* value = std::getenv(name);
      text += std::string(value ? value : "unset") + " ";
    }
    return text;
  };
  const std::string before = environment();
  at::manual_seed(9);
  const at::Tensor a = at::randn({64, 300}), b = at::randn({300, 64}), expected = at::mm(a, b);
  const OpenBlas* blas = OpenBlas::find();
  CHECK(environment() == before);
  CHECK(at::equal(at::mm(a, b), expected));
  CHECK(OpenBlas::load("libnothing_here.so.0") == nullptr);
  CHECK(OpenBlas::load("libz.so.1") == nullptr);
  CHECK(OpenBlas::load("libopenblas.so.0") == nullptr);  // it is loaded, or not there
  CHECK(has_product(ProductKernel::OpenBlas) == (blas != nullptr));
  if (blas) {
    MESSAGE("OpenBLAS ", blas->version());
    CHECK(described(ProductKernel::OpenBlas) == "openblas.gemm of " + blas->version());
  }
}

}  // namespace products_test
}  // namespace sfsdp::exec

// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/product_bench.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/agent/torchrun_agent.h"
#include "sfsdp/exec/planned/measure_products.h"
#include "sfsdp/exec/planned/onednn_matmul.h"
#include "sfsdp/exec/planned/openblas.h"
#include "sfsdp/train/job.h"

namespace {

using Clock = std::chrono::steady_clock;
// out = a · b
using Product = std::function<void(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out)>;
using Gemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                      const float* b, int ldb, float beta, float* c, int ldc);

Product blas_of(const std::string& file) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto gemm = handle ? reinterpret_cast<Gemm>(dlsym(handle, "cblas_sgemm")) : nullptr;
  if (!gemm)
    throw sfsdp::UserError(
        sfsdp::concat(file, " is no library with cblas_sgemm\n  expected aten, onednn, openblas or such a file"));
  return [gemm](const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
    constexpr int kRowMajor = 101, kNo = 111, kYes = 112;
    const auto transposed = [](const at::Tensor& t) { return t.stride(1) == 1 ? kNo : kYes; };
    const auto leading = [](const at::Tensor& t) { return static_cast<int>(std::max(t.stride(0), t.stride(1))); };
    gemm(kRowMajor, transposed(a), transposed(b), static_cast<int>(out.size(0)), static_cast<int>(out.size(1)),
         static_cast<int>(a.size(1)), 1, a.const_data_ptr<float>(), leading(a), b.const_data_ptr<float>(), leading(b),
         0, out.mutable_data_ptr<float>(), static_cast<int>(out.size(1)));
  };
}

Product product_of(const std::string& library, at::ScalarType dtype) {
  if (library == "aten")
    return [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
      at::mm_out(const_cast<at::Tensor&>(out), a, b);
    };
  if (library == "onednn") {
    if (!sfsdp::exec::has_onednn_matmul())
      throw sfsdp::UserError("this LibTorch offers no product of oneDNN\n  expected aten");
    return [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
      sfsdp::exec::onednn_matmul(a, b, out, 0);
    };
  }
  if (library == "openblas") {
    const auto* blas = sfsdp::exec::OpenBlas::find();
    if (!blas || dtype != at::kFloat)
      throw sfsdp::UserError("no product of OpenBLAS in this dtype here\n  expected libopenblas.so.0, and float32");
    return [blas](const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) { blas->multiply(a, b, out, 0); };
  }
  if (dtype != at::kFloat) throw sfsdp::UserError(library + " has no product of bfloat16\n  expected aten or onednn");
  return blas_of(library);
}

void measure(const Product& product, const char* kind, const at::Tensor& a, const at::Tensor& b, double seconds,
             const std::string& shape) {
  const at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  product(a, b, out);
  const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  const double error = ((out.to(at::kDouble) - exact).square().mean() / exact.square().mean()).sqrt().item<double>();
  double best = 1e9;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    const auto begin = Clock::now();
    product(a, b, out);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  const double flops =
      2.0 * static_cast<double>(a.size(0)) * static_cast<double>(a.size(1)) * static_cast<double>(b.size(1));
  std::printf("%s %s %.1f %.2e\n", kind, shape.c_str(), 1e-9 * flops / best, error);
  std::fflush(stdout);
}

}  // namespace

void measure_products(const std::string& library, const std::string& dtype, double seconds,
                      const std::vector<std::string>& shapes) {
  if (dtype != "float32" && dtype != "bfloat16")
    throw sfsdp::UserError(dtype + " is no dtype of products\n  expected float32 or bfloat16");
  const at::ScalarType type = dtype == "float32" ? at::kFloat : at::kBFloat16;
  const Product product = product_of(library, type);
  at::set_num_threads(1);
  at::manual_seed(1);
  for (const std::string& shape : shapes) {
    const auto parts = sfsdp::split(shape, ',');
    if (parts.size() != 3) throw sfsdp::UserError(shape + " is no shape\n  expected tokens,n,k");
    const int64_t tokens = std::stoll(parts[0]), n = std::stoll(parts[1]), k = std::stoll(parts[2]);
    const at::Tensor x = at::randn({tokens, k}).to(type), w = at::randn({n, k}).to(type),
                     dy = at::randn({tokens, n}).to(type);
    measure(product, "y", x, w.t(), seconds, shape);
    measure(product, "dx", dy, w, seconds, shape);
    measure(product, "dw", dy.t(), x, seconds, shape);
  }
}

void measure_products_of_job(const std::vector<std::string>& args) {
  std::unique_ptr<sfsdp::comm::CommWorld> world;
  if (std::getenv("WORLD_SIZE")) world = sfsdp::comm::make_launched_world(sfsdp::comm::tcp_options_from_env());
  const int64_t ranks = world ? world->world_size() : 1;
  sfsdp::exec::ProductChoice choice;
  sfsdp::train::JobOptions options;
  options.choose_products = [&](const std::vector<sfsdp::ir::ProductShape>& shapes, const std::string& rule) {
    choice = sfsdp::exec::choose_products(shapes, {.rule = rule, .cache_folder = ""}, world.get());
    return choice.table;
  };
  sfsdp::train::make_job(sfsdp::train::load_config(args), ranks, options);
  if (world && world->rank() != 0) return;
  for (const auto& [shape, seconds] : choice.seconds) {
    std::printf("%-26s", to_string(shape).c_str());
    for (const auto& [kernel, value] : seconds) std::printf("  %s %6.1f", kernel.c_str(), 1e-9 * shape.flops() / value);
    std::printf("  -> %s\n", choice.table.at(shape).c_str());
  }
  for (const std::string& note : choice.notes) std::printf("%s\n", note.c_str());
}

// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/attention_bench.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/exec/planned/attention_call.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/sequence_order.h"
#include "sfsdp/kernels/attention.h"

namespace {

using namespace sfsdp;
using Clock = std::chrono::steady_clock;

struct Shape {
  int64_t batch, heads, groups, length, width;
};

// [batch, heads, length, width] that lies as [batch, length, heads, width], as models make it.
at::Tensor random_heads(const Shape& s, int64_t heads, at::ScalarType dtype) {
  return at::randn({s.batch, s.length, heads, s.width}).to(dtype).transpose(1, 2);
}

ir::Graph graph_of(const Shape& s, at::ScalarType dtype) {
  const auto type = [&](int64_t heads) {
    return concat(dtype == at::kFloat ? "f32[" : "bf16[", s.batch, ", ", heads, ", ", s.length, ", ", s.width, "]{",
                  s.length * heads * s.width, ", ", s.width, ", ", heads * s.width, ", 1}");
  };
  const std::string q = type(s.heads), k = type(s.groups);
  const std::string named = " is_causal=true attention_kernel=sfsdp.flash : ";
  return ir::parse_or_throw(
      concat("graph mesh [dp_shard=1] view local\n", "  %q = input name=q : ", q, "\n  %k = input name=k : ", k,
             "\n  %v = input name=v : ", k, "\n  %g = input name=g : ", q, "\nfwd:\n  %o, %l = sdpa %q, %k, %v, none",
             named, q, ", f32[", s.batch, ", ", s.heads, ", ", s.length, "]{", s.length * s.heads, ", 1, ", s.heads,
             "}\n", "bwd:\n  %gq, %gk, %gv = sdpa_backward %g, %q, %k, %v, %o, %l, none dropout_p=0.0", named, q, ", ",
             k, ", ", k, "\n  return %gq\n"));
}

// out and the gradients of q, k, v
std::vector<at::Tensor> exact_of(const Shape& s, const std::vector<at::Tensor>& in) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& t : in) wide.push_back(t.to(at::kDouble).detach().requires_grad_());
  const auto spread = [&](const at::Tensor& t) { return t.repeat_interleave(s.heads / s.groups, 1); };
  const at::Tensor scores =
      at::matmul(wide[0], spread(wide[1]).transpose(2, 3)) / std::sqrt(static_cast<double>(s.width));
  const at::Tensor later = at::ones({s.length, s.length}, at::kBool).triu(1);
  const at::Tensor weights = at::softmax(scores.masked_fill(later, -std::numeric_limits<double>::infinity()), -1);
  const at::Tensor out = at::matmul(weights, spread(wide[2]));
  out.backward(in[3].to(at::kDouble));
  return {out.detach(), wide[0].grad(), wide[1].grad(), wide[2].grad()};
}

double largest_error(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& exact) {
  double most = 0;
  for (size_t i = 0; i < exact.size(); ++i)
    most = std::max(
        most, ((got[i].to(at::kDouble) - exact[i]).square().mean() / exact[i].square().mean()).sqrt().item<double>());
  return most;
}

void measure(const Shape& s, at::ScalarType dtype) {
  const std::vector<at::Tensor> in = {random_heads(s, s.heads, dtype), random_heads(s, s.groups, dtype),
                                      random_heads(s, s.groups, dtype), random_heads(s, s.heads, dtype)};
  const ir::Graph graph = graph_of(s, dtype);
  exec::AttentionCall own_forward(*graph.find_value("o")->producer(), {}),
      own_backward(*graph.find_value("gq")->producer(), {});
  std::vector<at::Tensor> aten(5), own(5);  // out, three gradients, logarithms
  const std::vector<std::function<void()>> runs = {
      [&] {
        std::tie(aten[0], aten[4]) = at::_scaled_dot_product_flash_attention_for_cpu(in[0], in[1], in[2], 0, true);
      },
      [&] {
        std::tie(aten[1], aten[2], aten[3]) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            in[3], in[0], in[1], in[2], aten[0], aten[4], 0, true);
      },
      [&] {
        const auto results = own_forward.run(std::vector<at::Tensor>{in[0], in[1], in[2], at::Tensor()}, {});
        own[0] = results[0], own[4] = results[1];
      },
      [&] {
        const auto results =
            own_backward.run(std::vector<at::Tensor>{in[3], in[0], in[1], in[2], own[0], own[4], at::Tensor()}, {});
        std::ranges::copy(results, own.begin() + 1);
      }};
  std::vector<std::vector<double>> ms(runs.size());
  for (int round = 0; round < 9; ++round)
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto begin = Clock::now();
      runs[i]();
      ms[i].push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    }
  for (auto& times : ms) std::ranges::sort(times);
  const auto median = [&](size_t i) { return ms[i][ms[i].size() / 2]; };
  const std::vector<at::Tensor> exact = exact_of(s, in);
  std::printf(
      "%-8s %2lld x %2lld/%-2lld heads, %4lld x %3lld: forward %7.2f and %7.2f ms (%.2f), backward %7.2f and %7.2f ms"
      " (%.2f), error %.1e and %.1e\n",
      dtype == at::kFloat ? "float32" : "bfloat16", static_cast<long long>(s.batch), static_cast<long long>(s.heads),
      static_cast<long long>(s.groups), static_cast<long long>(s.length), static_cast<long long>(s.width), median(0),
      median(2), median(0) / median(2), median(1), median(3), median(1) / median(3), largest_error(aten, exact),
      largest_error(own, exact));
  std::fflush(stdout);
}

// Forward and backward of each rank's part of a causal sequence, and what a share of the whole would take.
void measure_parts(const Shape& s, at::ScalarType dtype, int64_t ranks) {
  const std::vector<at::Tensor> in = {random_heads(s, s.heads, dtype), random_heads(s, s.groups, dtype),
                                      random_heads(s, s.groups, dtype), random_heads(s, s.heads, dtype)};
  const auto heads_of = [](const at::Tensor& t) {
    return kernels::Heads{t.data_ptr(), t.stride(0), t.stride(1), t.stride(2)};
  };
  const auto milliseconds = [&](const std::vector<ir::PositionRun>& positions) {
    kernels::AttentionShape shape = {s.batch,
                                     s.heads,
                                     s.groups,
                                     s.length,
                                     s.length,
                                     s.width,
                                     true,
                                     1 / std::sqrt(static_cast<float>(s.width)),
                                     dtype == at::kFloat ? ir::DType::f32 : ir::DType::bf16};
    shape.is_part = !positions.empty();
    if (shape.is_part) shape.queries = s.length / ranks;
    const auto rows = [&](const at::Tensor& t) { return t.narrow(2, 0, shape.queries); };
    const at::Tensor out = at::empty_like(in[0]), dq = at::empty_like(in[0]), dk = at::empty_like(in[1]),
                     dv = at::empty_like(in[2]), sums = at::empty({s.batch, s.heads, shape.queries});
    kernels::Attention attention = {.shape = shape,
                                    .query = heads_of(rows(in[0])),
                                    .key = heads_of(in[1]),
                                    .value = heads_of(in[2]),
                                    .out = heads_of(rows(out)),
                                    .log_sum = {sums.data_ptr<float>(), sums.stride(0), sums.stride(1), sums.stride(2)},
                                    .grad_out = heads_of(rows(in[3])),
                                    .grad_query = heads_of(rows(dq)),
                                    .grad_key = heads_of(dk),
                                    .grad_value = heads_of(dv)};
    std::ranges::copy(positions, attention.positions);
    std::vector<double> ms;
    for (int round = 0; round < 5; ++round) {
      const auto begin = Clock::now();
      kernels::attend(attention, 0, kernels::units_of(shape));
      kernels::attend_backward(attention, 0, kernels::units_of(shape));
      ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    }
    std::ranges::sort(ms);
    return ms[2];
  };
  std::printf("%-8s %lld ranks of %lld x %lld/%lld heads, %lld x %lld: a share of the whole takes %.1f ms;",
              dtype == at::kFloat ? "float32" : "bfloat16", static_cast<long long>(ranks),
              static_cast<long long>(s.batch), static_cast<long long>(s.heads), static_cast<long long>(s.groups),
              static_cast<long long>(s.length), static_cast<long long>(s.width),
              milliseconds({}) / static_cast<double>(ranks));
  for (const bool balanced : {true, false}) {
    std::printf(balanced ? " balanced" : ", natural");
    for (int64_t rank = 0; rank < ranks; ++rank)
      std::printf(" %.1f", milliseconds(ir::positions_of_rank({s.length, ranks, balanced}, rank)));
  }
  std::printf(" ms\n");
  std::fflush(stdout);
}

}  // namespace

void measure_attention() {
  at::set_num_threads(1);
  at::manual_seed(0);
  std::printf("LibTorch's and sfsdp's kernel, in brackets how many times as fast sfsdp's is\n");
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const Shape& shape :
         {Shape{2, 12, 4, 256, 64}, Shape{2, 12, 12, 256, 64}, Shape{1, 16, 16, 2048, 16}, Shape{1, 8, 8, 1024, 128}})
      measure(shape, dtype);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) measure_parts({1, 4, 2, 4096, 64}, dtype, 4);
}

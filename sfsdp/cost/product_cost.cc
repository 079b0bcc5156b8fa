// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/product_cost.h"

#include <algorithm>
#include <cmath>

namespace sfsdp::cost {
namespace {

using ir::Op;

// What a product gives to one multiprocessor at a time.
struct Tile {
  double m = 1, n = 1;
};

constexpr double kSmallestTile = 64;
constexpr double kShallowest = 256;  // depth that a split's part takes at least: eight steps of 32 fill the pipeline

// A multiply-add of a tile needs 1/m + 1/n elements from outside the multiprocessor. Estimated: on H100 tiles of
// 128 × 128 reach 0.83 of what 128 × 256 do.
constexpr double kLoads = 51;  // in elements: 1 / (1 + 51 · (2/128 - 1/128 - 1/256)) = 0.83

double loads_of(const Tile& tile) { return 1 / tile.m + 1 / tile.n; }

double memory_seconds(double bytes, const Machine& machine) {
  return bytes / (machine.memory_bandwidth * machine.memory_efficiency);
}

// One choice of tile and split. A wave lasts as long as its fullest tile, so that more work never takes less.
double kernel_seconds(const ProductShape& s, double rate, const Tile& tile, double split, const Machine& machine) {
  const auto multiprocessors = static_cast<double>(machine.multiprocessors);
  const Tile full = {static_cast<double>(machine.tile_m), static_cast<double>(machine.tile_n)};
  const double across = std::ceil(s.m / tile.m) * std::ceil(s.n / tile.n);
  const double waves = std::ceil(s.batch * across * split / multiprocessors);
  const double depth = split > 1 ? std::max(s.k / split, kShallowest) : s.k;
  const double flops_of_tile = 2 * std::min(s.m, tile.m) * std::min(s.n, tile.n) * (depth + machine.half_k);
  const double slower = 1 + kLoads * std::max(0.0, loads_of(tile) - loads_of(full));
  const double partial_sums = split > 1 ? 2 * sizeof(float) * split * s.batch * s.m * s.n : 0;  // written, read
  return waves * flops_of_tile * slower * multiprocessors / rate + memory_seconds(partial_sums, machine);
}

}  // namespace

double peak_of(const Op& op, const Machine& m) {
  const ir::DType dtype = op.result()->type().dtype;
  return ir::is_half(dtype) ? m.peak_bf16 : m.peak_f32;
}

double product_seconds(const ProductShape& s, double rate, const Machine& machine) {
  const double flops = 2 * s.batch * s.m * s.n * s.k;
  if (flops == 0) return 0;
  if (machine.multiprocessors <= 1) return flops / rate * (s.k + machine.half_k) / s.k;
  double fastest = INFINITY;
  for (auto m = static_cast<double>(machine.tile_m);; m /= 2) {
    for (auto n = static_cast<double>(machine.tile_n);; n /= 2) {
      const double tiles = s.batch * std::ceil(s.m / m) * std::ceil(s.n / n);
      const auto is_worth = [&](double split) {  // what is cut less is deep enough, and does not fill a wave
        return split == 1 ||
               (s.k / (split - 1) > kShallowest && tiles * (split - 1) < static_cast<double>(machine.multiprocessors));
      };
      for (double split = 1; is_worth(split); ++split)
        fastest = std::min(fastest, kernel_seconds(s, rate, {m, n}, split, machine));
      if (n / 2 < kSmallestTile) break;
    }
    if (m / 2 < kSmallestTile) break;
  }
  return fastest;
}

double product_seconds(const Op& op, const Machine& machine) {
  return product_seconds(product_shape(op), peak_of(op, machine) * machine.matmul_efficiency, machine);
}

// A pair of positions costs width multiply-adds per product and one exponential, whatever the width: narrow heads are
// slower per flop. FlashAttention's published curves: width 64 reaches 0.77 of width 128's rate (FlashAttention-3, long
// causal sequences), and width 256 hardly more than 128.
double attention_seconds(const Op& op, const Machine& machine) {
  const AttentionShape s = attention_shape(op);
  constexpr double kFullWidth = 128, kExponential = 54;  // in multiply-adds
  const double width = std::min(s.width, kFullWidth);
  const double narrow = width / (width + kExponential) * (kFullWidth + kExponential) / kFullWidth;
  const double rate = peak_of(op, machine) * attention_efficiency(machine) * narrow * s.length /
                      (s.length + machine.attention_half_length);
  return s.of_mean * flops_of(op) / rate;
}

double flops_per_byte(const Op& product, const Machine& machine) {
  return peak_of(product, machine) * machine.matmul_efficiency / (machine.memory_bandwidth * machine.memory_efficiency);
}

}  // namespace sfsdp::cost

// SPDX-License-Identifier: BSD-3-Clause
// The kernels of a family of processors: the same arithmetic (vector.h), compiled for other instructions. Last bits differ between
// families: a product and a sum are rounded once where there is an instruction for both.
#pragma once

#include <cstdint>
#include <vector>

#include "sfsdp/kernels/adam.h"
#include "sfsdp/kernels/attention.h"
#include "sfsdp/kernels/cross_entropy.h"
#include "sfsdp/kernels/embedding.h"
#include "sfsdp/kernels/pointwise.h"
#include "sfsdp/kernels/rms_norm.h"
#include "sfsdp/kernels/rope.h"

namespace sfsdp::kernels {

// Queries and keys of a tile of attention.
inline constexpr int64_t kTile = 64;

// One unit of attention: the heads of a group in one sample.
struct AttentionUnit {
  const Attention* attention = nullptr;
  int64_t sample = 0, group = 0;
  const int32_t* documents = nullptr;  // by key: equal numbers are one document; null: all are
  float* scratch = nullptr;            // scratch_floats() of them, 64-byte aligned
};
int64_t scratch_floats(const AttentionShape& shape, bool backward);

// What an update multiplies by, each of float64 and rounded once.
struct AdamFactors {
  float decay, first, rest_of_first, second, rest_of_second, eps;
  float size;  // of the step: lr, without the bias of the first moment
  float root;  // of what the second moment lacks in the first steps
};

// Pointwise, without what only the host needs.
struct PointwiseRun {
  const PointData* input;
  int64_t inputs;
  const PointStep* step;
  int64_t steps;
  const PointData* output;
  int64_t outputs;
  int64_t begin, end;
};

struct Family {
  const char* name = "";
  void (*attend)(const AttentionUnit& unit) = nullptr;
  void (*attend_backward)(const AttentionUnit& unit) = nullptr;
  void (*cross_entropy)(const CrossEntropy& call, int64_t begin, int64_t end) = nullptr;
  void (*cross_entropy_parts)(const CrossEntropy& call, int64_t begin, int64_t end) = nullptr;
  void (*cross_entropy_backward)(const CrossEntropy& call, int64_t begin, int64_t end) = nullptr;
  void (*rms_norm)(const RmsNorm& call, int64_t begin, int64_t end) = nullptr;
  void (*rms_norm_backward)(const RmsNorm& call, int64_t begin, int64_t end) = nullptr;
  double (*sum_squares)(const void* data, bool wide, int64_t count) = nullptr;  // wide: f32
  void (*adam)(const Adam& call, const AdamFactors& factors) = nullptr;
  void (*embedding_row)(const EmbeddingGrad& call, const int64_t* rows, int64_t count, int64_t id) = nullptr;
  void (*rope)(const Rope& call, int64_t begin, int64_t end) = nullptr;
  void (*pointwise)(const PointwiseRun& run) = nullptr;
  // e^x as all of these have it, for tests; count is a multiple of 16.
  void (*exp)(const float* x, float* to, int64_t count) = nullptr;
};

Family baseline_family();
#if defined(__x86_64__)
Family avx2_family();
Family avx512_family();
Family avx512bf16_family();
#endif

// Those that this processor is of, the best last.
std::vector<Family> families();
// The best.
const Family& family();

}  // namespace sfsdp::kernels

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/attention.h"

#include <algorithm>
#include <map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels {
namespace {

constexpr int64_t kMaxWidth = 256;

// Documents as small numbers. They mostly follow each other with growing numbers; then a change is a new one.
void number_documents(const int64_t* documents, std::vector<int32_t>& numbers) {
  const auto count = static_cast<int64_t>(numbers.size());
  if (std::is_sorted(documents, documents + count)) {
    for (int64_t i = 1; i < count; ++i)
      numbers[static_cast<size_t>(i)] =
          numbers[static_cast<size_t>(i - 1)] + (documents[i] != documents[i - 1] ? 1 : 0);
    return;
  }
  std::map<int64_t, int32_t> known;
  for (int64_t i = 0; i < count; ++i)
    numbers[static_cast<size_t>(i)] = known.emplace(documents[i], static_cast<int32_t>(known.size())).first->second;
}

// Whether each of so many rows of a part has a position in the sequence.
bool are_placed(const ir::PositionRun (&runs)[2], int64_t rows, int64_t length) {
  int64_t placed = 0;
  for (const ir::PositionRun& run : runs) {
    if (run.first < 0 || run.count < 0 || run.first + run.count > length) return false;
    placed += run.count;
  }
  return placed == rows;
}

void run(const Attention& attention, int64_t begin, int64_t end, bool backward) {
  const AttentionShape& shape = attention.shape;
  SFSDP_CHECK(can_attend(shape) && begin >= 0 && end <= units_of(shape), "attention of ", shape.queries, " x ",
              shape.width);
  SFSDP_CHECK(!shape.is_part || are_placed(attention.positions, shape.queries, shape.positions()), shape.queries,
              " queries at positions ", attention.positions[0].first, " and ", attention.positions[1].first, " of ",
              shape.positions());
  SFSDP_CHECK(shape.length == 0 || are_placed(attention.key_positions, shape.keys, shape.length), shape.keys,
              " keys at positions ", attention.key_positions[0].first, " and ", attention.key_positions[1].first,
              " of ", shape.length);
  // Kept by the thread, unless it is large: gradients of many keys.
  constexpr size_t kMostKept = 16 << 20;
  thread_local std::vector<float> kept;
  std::vector<float> large;
  const auto needed = static_cast<size_t>(scratch_floats(shape, backward) + kTile);
  std::vector<float>& scratch = needed > kMostKept ? large : kept;
  if (scratch.size() < needed) scratch = std::vector<float>(needed);
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  float* aligned = scratch.data() + (64 - address % 64) % 64 / sizeof(float);
  std::vector<int32_t> documents;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t sample = i / shape.groups;
    if (attention.documents && (i == begin || i % shape.groups == 0)) {
      documents.assign(static_cast<size_t>(shape.positions()), 0);
      number_documents(attention.documents + sample * shape.positions(), documents);
    }
    const AttentionUnit unit = {&attention, sample, i % shape.groups, attention.documents ? documents.data() : nullptr,
                                aligned};
    backward ? family().attend_backward(unit) : family().attend(unit);
  }
}

}  // namespace

bool can_attend(const AttentionShape& s) {
  return (s.dtype == ir::DType::f32 || s.dtype == ir::DType::bf16) && s.width % 16 == 0 && s.width >= 16 &&
         s.width <= kMaxWidth && s.batch > 0 && s.groups > 0 && s.heads % s.groups == 0 && s.queries > 0 &&
         s.keys > 0 &&
         (s.is_part ? s.causal && s.queries <= s.keys && (s.length == 0 || s.keys <= s.length)
                    : s.length == 0 && (!s.causal || s.queries == s.keys)) &&
         s.scale > 0;
}

int64_t units_of(const AttentionShape& shape) { return shape.batch * shape.groups; }

int64_t scratch_floats(const AttentionShape& shape, bool backward) {
  const int64_t block = kTile * shape.width, scores = kTile * kTile;
  // Forward: queries transposed, results, keys, values, scores. Backward: see attention_kernel.h; in pairs there are fewer blocks
  // and more scores.
  if (!backward) return 4 * block + scores;
  return 7 * block + 4 * scores + 2 * shape.keys * shape.width;
}

void attend(const Attention& attention, int64_t begin, int64_t end) { run(attention, begin, end, false); }
void attend_backward(const Attention& attention, int64_t begin, int64_t end) { run(attention, begin, end, true); }

}  // namespace sfsdp::kernels

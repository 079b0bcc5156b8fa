// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of cross_entropy.h; see vector.h for how it is compiled.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

// Logits i to i + kLanes - 1 of a row; beyond its end -inf, whose exp is 0.
template <class T>
SFSDP_INLINE V logits_at(const T* row, int64_t i, int64_t classes) {
  if (i + kLanes <= classes) return load(row + i);
  V v = V{};
  for (int lane = 0; lane < kLanes; ++lane) v[lane] = i + lane < classes ? as_float(row[i + lane]) : kMinusInfinity;
  return v;
}

SFSDP_INLINE float largest_of(V v) {
  float most = v[0];
  for (int lane = 1; lane < kLanes; ++lane) most = v[lane] != v[lane] || v[lane] > most ? v[lane] : most;
  return most;
}

// Sums of a block of vectors are added up in float64: a row may have a million classes.
constexpr int64_t kBlockOfSums = 64 * kLanes;

struct SumOfRow {
  float base;  // the largest logit
  double sum;  // of exp(logit - base)
};

template <class T>
SFSDP_INLINE SumOfRow sum_of(const T* row, int64_t classes) {
  V most = all(kMinusInfinity);
  for (int64_t i = 0; i < classes; i += kLanes) most = larger(logits_at(row, i, classes), most);
  SumOfRow of = {largest_of(most), 0};
  for (int64_t first = 0; first < classes; first += kBlockOfSums) {
    V block = V{};
    for (int64_t i = first; i < classes && i < first + kBlockOfSums; i += kLanes)
      block += exp(logits_at(row, i, classes) - all(of.base));
    for (int lane = 0; lane < kLanes; ++lane) of.sum += block[lane];
  }
  return of;
}

template <class T>
void cross_entropy_rows(const CrossEntropy& c, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* row = static_cast<const T*>(c.logits) + r * c.classes;
    const SumOfRow of = sum_of(row, c.classes);
    const double log_sum = __builtin_log(of.sum);  // of what is left where the largest is taken off
    c.log_sums[r] = static_cast<float>(of.base + log_sum);
    const int64_t target = c.targets[r];
    // The largest logit goes first: of large ones the difference is what counts.
    c.losses[r] = target == c.ignored
                      ? 0.0f
                      : static_cast<float>((static_cast<double>(of.base) - as_float(row[target])) + log_sum);
  }
}

template <class T>
void cross_entropy_parts_rows(const CrossEntropy& c, int64_t begin, int64_t end) {
  const int64_t counted = c.counted < 0 ? c.classes : c.counted;
  for (int64_t r = begin; r < end; ++r) {
    const T* row = static_cast<const T*>(c.logits) + r * c.classes;
    const SumOfRow of = sum_of(row, counted);
    const int64_t column = c.targets[r] - c.first;
    const bool is_own = c.targets[r] != c.ignored && column >= 0 && column < counted;
    c.parts[r] = of.base;
    c.parts[c.rows + r] = of.base == kMinusInfinity ? 0.0f : static_cast<float>(of.sum);  // relative to it nothing is
    c.parts[2 * c.rows + r] = is_own ? as_float(row[column]) : 0.0f;
  }
}

// Where these are all classes the sum is made again: the logarithm that forward left is rounded, which would cost each probability up to two last bits.
template <class T>
void cross_entropy_backward_rows(const CrossEntropy& c, int64_t begin, int64_t end) {
  const int64_t counted = c.counted < 0 ? c.classes : c.counted;
  for (int64_t r = begin; r < end; ++r) {
    const T* row = static_cast<const T*>(c.logits) + r * c.classes;
    T* grad = static_cast<T*>(c.grad) + r * c.classes;
    const int64_t target = c.targets[r] - c.first;
    const bool counts = c.targets[r] != c.ignored;
    const float factor = counts ? c.factors[c.factor_by_row ? r : 0] : 0.0f;
    const SumOfRow of = !counts ? SumOfRow{0, 1} : c.given_sums ? SumOfRow{c.given_sums[r], 1} : sum_of(row, c.classes);
    const V share = all(static_cast<float>(factor / of.sum));
    for (int64_t i = 0; i < c.classes; i += kLanes) {
      V slope = counts ? exp(logits_at(row, i, counted) - all(of.base)) * share : V{};
      if (target >= i && target < i + kLanes && target < counted && counts) slope[target - i] -= factor;
      if (i + kLanes <= c.classes)
        store(grad + i, slope);
      else
        for (int lane = 0; i + lane < c.classes; ++lane) grad[i + lane] = rounded<T>(slope[lane]);
    }
  }
}

void cross_entropy_forward(const CrossEntropy& c, int64_t begin, int64_t end) {
  c.dtype == ir::DType::f32 ? cross_entropy_rows<float>(c, begin, end) : cross_entropy_rows<uint16_t>(c, begin, end);
}

void cross_entropy_parts_some(const CrossEntropy& c, int64_t begin, int64_t end) {
  c.dtype == ir::DType::f32 ? cross_entropy_parts_rows<float>(c, begin, end)
                            : cross_entropy_parts_rows<uint16_t>(c, begin, end);
}

void cross_entropy_grad(const CrossEntropy& c, int64_t begin, int64_t end) {
  c.dtype == ir::DType::f32 ? cross_entropy_backward_rows<float>(c, begin, end)
                            : cross_entropy_backward_rows<uint16_t>(c, begin, end);
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

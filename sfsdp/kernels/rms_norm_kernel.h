// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of rms_norm.h; see vector.h for how it is compiled.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

// Sums of a block of vectors are added up in float64: a row may be long.
constexpr int64_t kBlockOfSquares = 16 * kLanes;

template <class T, class W>
void norm_rows(const RmsNorm& n, int64_t begin, int64_t end) {
  const W* weight = static_cast<const W*>(n.weight);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(n.x) + r * n.width;
    T* y = static_cast<T*>(n.y) + r * n.width;
    double squares = 0;
    for (int64_t first = 0; first < n.width; first += kBlockOfSquares) {
      V block = V{};
      for (int64_t i = first; i < n.width && i < first + kBlockOfSquares; i += kLanes) {
        const V v = part(x, i, n.width);
        block += v * v;
      }
      squares += sum_of_lanes(block);
    }
    const double rstd = 1 / __builtin_sqrt(squares / static_cast<double>(n.width) + n.eps);
    n.rstd[r] = static_cast<float>(rstd);
    const V factor = all(n.rstd[r]);
    for (int64_t i = 0; i < n.width; i += kLanes) {
      V v = part(x, i, n.width) * factor;
      if (weight) v *= part(weight, i, n.width);
      store_part(y, i, n.width, v);
    }
  }
}

// grad_x = residual + rstd · (g - x · rstd² · mean(g · x)), where g = grad · weight.
template <class T, class W>
void norm_backward_rows(const RmsNorm& n, int64_t begin, int64_t end, float* grad_weight) {
  const W* weight = static_cast<const W*>(n.weight);
  for (int64_t i = 0; grad_weight && i < n.width; ++i) grad_weight[i] = 0;
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(n.x) + r * n.width;
    const T* grad = static_cast<const T*>(n.grad) + r * n.width;
    const V rstd = all(n.rstd[r]);
    double sum = 0;  // of g · x
    for (int64_t first = 0; first < n.width; first += kBlockOfSquares) {
      V block = V{};
      for (int64_t i = first; i < n.width && i < first + kBlockOfSquares; i += kLanes) {
        const V v = part(x, i, n.width);
        V g = part(grad, i, n.width);
        if (grad_weight) store_part(grad_weight, i, n.width, part(grad_weight, i, n.width) + g * (v * rstd));
        if (weight) g *= part(weight, i, n.width);
        block += g * v;
      }
      sum += sum_of_lanes(block);
    }
    if (!n.grad_x) continue;
    const double of_row = n.rstd[r];
    const V slope = all(static_cast<float>(of_row * of_row * of_row * sum / static_cast<double>(n.width)));
    const float* residual = n.residual ? n.residual + r * n.width : nullptr;
    T* grad_x = static_cast<T*>(n.grad_x) + r * n.width;
    for (int64_t i = 0; i < n.width; i += kLanes) {
      V g = part(grad, i, n.width);
      if (weight) g *= part(weight, i, n.width);
      V v = g * rstd - part(x, i, n.width) * slope;
      if (residual) v += part(residual, i, n.width);
      store_part(grad_x, i, n.width, v);
    }
  }
}

template <class T, class W>
void norm_blocks_of(const RmsNorm& n, int64_t begin, int64_t end, bool backward) {
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * kNormRows, last = first + kNormRows < n.rows ? first + kNormRows : n.rows;
    if (backward)
      norm_backward_rows<T, W>(n, first, last, n.grad_weight ? n.grad_weight + block * n.width : nullptr);
    else
      norm_rows<T, W>(n, first, last);
  }
}

SFSDP_INLINE void norm_of_dtypes(const RmsNorm& n, int64_t begin, int64_t end, bool backward) {
  const bool wide = n.dtype == ir::DType::f32, wide_weight = n.weight_dtype == ir::DType::f32;
  if (wide && wide_weight)
    norm_blocks_of<float, float>(n, begin, end, backward);
  else if (wide)
    norm_blocks_of<float, uint16_t>(n, begin, end, backward);
  else if (wide_weight)
    norm_blocks_of<uint16_t, float>(n, begin, end, backward);
  else
    norm_blocks_of<uint16_t, uint16_t>(n, begin, end, backward);
}

void norm_forward(const RmsNorm& n, int64_t begin, int64_t end) { norm_of_dtypes(n, begin, end, false); }
void norm_grad(const RmsNorm& n, int64_t begin, int64_t end) { norm_of_dtypes(n, begin, end, true); }

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of embedding.h; see vector.h for how it is compiled.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

template <class T, class R>
void sum_rows(const EmbeddingGrad& e, const int64_t* rows, int64_t count, R* out) {
  for (int64_t i = 0; i < e.width; i += kLanes) {
    V sum = V{};
    for (int64_t k = 0; k < count; ++k) sum += part(static_cast<const T*>(e.grad) + rows[k] * e.width, i, e.width);
    store_part(out, i, e.width, sum);
  }
}

template <class T>
SFSDP_INLINE void sum_rows_of(const EmbeddingGrad& e, const int64_t* rows, int64_t count, int64_t id) {
  if (e.out_dtype == ir::DType::f32)
    sum_rows<T>(e, rows, count, static_cast<float*>(e.out) + id * e.width);
  else
    sum_rows<T>(e, rows, count, static_cast<uint16_t*>(e.out) + id * e.width);
}

// Row `id` of the result, of `count` rows of the gradient.
void embedding_sum(const EmbeddingGrad& e, const int64_t* rows, int64_t count, int64_t id) {
  e.grad_dtype == ir::DType::f32 ? sum_rows_of<float>(e, rows, count, id) : sum_rows_of<uint16_t>(e, rows, count, id);
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

// SPDX-License-Identifier: BSD-3-Clause
// Products of matrices that lie in the caches, as attention has them; see vector.h for how it is compiled.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

constexpr int kTileRows = SFSDP_TILE_ROWS, kTileVectors = SFSDP_TILE_VECTORS;
constexpr int64_t kTileColumns = kTileVectors * kLanes;

// A step of a product: b has a number for each column. What is multiplied stands in memory as A and B: floats, or pairs of bfloat16,
// two of which are multiplied in one step.
SFSDP_INLINE V all_of(const float* a) { return all(*a); }
SFSDP_INLINE V columns_of(const float* b) { return load(b); }
SFSDP_INLINE V plus_product(V sum, V a, V b) { return sum + a * b; }
#ifdef SFSDP_DOT
SFSDP_INLINE U all_of(const uint16_t* a) {
  uint32_t pair;
  __builtin_memcpy(&pair, a, sizeof pair);
  return U{} + pair;
}
SFSDP_INLINE U columns_of(const uint32_t* b) {
  U pairs;
  __builtin_memcpy(&pairs, b, sizeof pairs);
  return pairs;
}
SFSDP_INLINE V plus_product(V sum, U a, U b) { return SFSDP_DOT(sum, a, b); }
#endif

// c[rows][vectors · lanes] (+)= a · b over `steps`, which is summed by itself first: long sums lose less so. What a has of row r and
// step k is at a + r · a_row + k · a_step; a
// row of b has its columns side by side.
template <int kRows, int kVectors, class A, class B>
SFSDP_INLINE void multiply_tile(const A* a, int64_t a_row, int64_t a_step, const B* b, int64_t b_row, float* c,
                                int64_t c_row, int64_t steps, bool add) {
  V sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] = V{};
  for (int64_t k = 0; k < steps; ++k) {
    decltype(columns_of(b)) of_b[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) of_b[v] = columns_of(b + k * b_row + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto of_a = all_of(a + r * a_row + k * a_step);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] = plus_product(sums[r][v], of_a, of_b[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* to = c + r * c_row + v * kLanes;
      store(to, add ? load(to) + sums[r][v] : sums[r][v]);
    }
}

template <int kRows, int kVectors, class A, class B>
void multiply_rows(const A* a, int64_t a_row, int64_t a_step, const B* b, int64_t b_row, float* c, int64_t c_row,
                   int64_t rows, int64_t steps, bool add) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    multiply_tile<kRows, kVectors>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, steps, add);
  for (; r + 2 <= rows; r += 2)
    multiply_tile<2, kVectors>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, steps, add);
  if (r < rows) multiply_tile<1, kVectors>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, steps, add);
}

// c [rows, columns] (+)= a [rows, steps] · b [steps, columns]; columns: a multiple of 16.
template <class A, class B>
void multiply(const A* a, int64_t a_row, int64_t a_step, const B* b, int64_t b_row, float* c, int64_t c_row,
              int64_t rows, int64_t columns, int64_t steps, bool add) {
  int64_t n = 0;
  for (; n + kTileColumns <= columns; n += kTileColumns)
    multiply_rows<kTileRows, kTileVectors>(a, a_row, a_step, b + n, b_row, c + n, c_row, rows, steps, add);
  // Fewer vectors leave registers for more rows.
  for (; n < columns; n += kLanes)
    multiply_rows<2 * kTileRows, 1>(a, a_row, a_step, b + n, b_row, c + n, c_row, rows, steps, add);
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

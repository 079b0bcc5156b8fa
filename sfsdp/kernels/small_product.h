// SPDX-License-Identifier: BSD-3-Clause
// Products of matrices that lie in the caches, as attention has them; see vector.h for how it is compiled.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

constexpr int kTileRows = SFSDP_TILE_ROWS, kTileVectors = SFSDP_TILE_VECTORS;
constexpr int64_t kTileColumns = kTileVectors * kLanes;

// c[rows][vectors · lanes] (+)= a · b, which is summed by itself first: long sums lose less so. Element (r, k) of a is a[r · a_row + k · a_step]; a row of b has its elements side by side.
template <int kRows, int kVectors>
SFSDP_INLINE void multiply_tile(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_row, float* c,
                                int64_t c_row, int64_t depth, bool add) {
  V sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] = V{};
  for (int64_t k = 0; k < depth; ++k) {
    V of_b[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) of_b[v] = load(b + k * b_row + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const V of_a = all(a[r * a_row + k * a_step]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] += of_a * of_b[v];
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

template <int kRows, int kVectors>
void multiply_rows(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_row, float* c,
                   int64_t c_row, int64_t rows, int64_t depth, bool add) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    multiply_tile<kRows, kVectors>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, depth, add);
  for (; r + 2 <= rows; r += 2)
    multiply_tile<2, kVectors>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, depth, add);
  if (r < rows) multiply_tile<1, kVectors>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, depth, add);
}

// c [rows, columns] (+)= a [rows, depth] · b [depth, columns]; columns: a multiple of 16.
void multiply(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_row, float* c, int64_t c_row,
              int64_t rows, int64_t columns, int64_t depth, bool add) {
  int64_t n = 0;
  for (; n + kTileColumns <= columns; n += kTileColumns)
    multiply_rows<kTileRows, kTileVectors>(a, a_row, a_step, b + n, b_row, c + n, c_row, rows, depth, add);
  // Fewer vectors leave registers for more rows.
  for (; n < columns; n += kLanes)
    multiply_rows<2 * kTileRows, 1>(a, a_row, a_step, b + n, b_row, c + n, c_row, rows, depth, add);
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

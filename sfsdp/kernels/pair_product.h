// SPDX-License-Identifier: BSD-3-Clause
// Products of bfloat16 matrices that lie in the caches, two steps at a time (SFSDP_DOT), and rows as such pairs; see vector.h for how it
// is compiled.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

// c[rows][vectors · lanes] (+)= a · b over `pairs` of two steps. Pair k of row r is the two numbers at a + r · a_row + k · a_step; a row
// of b has a pair per column.
template <int kRows, int kVectors>
SFSDP_INLINE void multiply_pairs_tile(const uint16_t* a, int64_t a_row, int64_t a_step, const uint32_t* b,
                                      int64_t b_row, float* c, int64_t c_row, int64_t pairs, bool add) {
  V sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] = V{};
  for (int64_t k = 0; k < pairs; ++k) {
    U of_b[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) __builtin_memcpy(&of_b[v], b + k * b_row + v * kLanes, sizeof of_b[v]);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      uint32_t pair;
      __builtin_memcpy(&pair, a + r * a_row + k * a_step, sizeof pair);
      const U of_a = U{} + pair;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] = SFSDP_DOT(sums[r][v], of_a, of_b[v]);
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
void multiply_pairs_rows(const uint16_t* a, int64_t a_row, int64_t a_step, const uint32_t* b, int64_t b_row, float* c,
                         int64_t c_row, int64_t rows, int64_t pairs, bool add) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    multiply_pairs_tile<kRows, kVectors>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, pairs, add);
  for (; r + 2 <= rows; r += 2)
    multiply_pairs_tile<2, kVectors>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, pairs, add);
  if (r < rows)
    multiply_pairs_tile<1, kVectors>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, pairs, add);
}

// c [rows, columns] (+)= a [rows, 2 · pairs] · b [2 · pairs, columns]; columns: a multiple of 16.
void multiply_pairs(const uint16_t* a, int64_t a_row, int64_t a_step, const uint32_t* b, int64_t b_row, float* c,
                    int64_t c_row, int64_t rows, int64_t columns, int64_t pairs, bool add) {
  int64_t n = 0;
  for (; n + kTileColumns <= columns; n += kTileColumns)
    multiply_pairs_rows<kTileRows, kTileVectors>(a, a_row, a_step, b + n, b_row, c + n, c_row, rows, pairs, add);
  for (; n < columns; n += kLanes)
    multiply_pairs_rows<2 * kTileRows, 1>(a, a_row, a_step, b + n, b_row, c + n, c_row, rows, pairs, add);
}

// Rows of bfloat16, where they lie.
struct Narrow {
  const uint16_t* data = nullptr;
  int64_t row = 0;
};

SFSDP_INLINE U wide_halves(const uint16_t* from) {
  H half;
  __builtin_memcpy(&half, from, sizeof half);
  return __builtin_convertvector(half, U);
}

// to [count / 2, rounded up][width]: rows 2r and 2r + 1, element by element; a row that is missing is zeros.
void pair_rows(const Narrow& rows, int64_t count, int64_t width, uint32_t* to) {
  for (int64_t r = 0; r < count; r += 2)
    for (int64_t i = 0; i < width; i += kLanes) {
      U both = wide_halves(rows.data + r * rows.row + i);
      if (r + 1 < count) both |= wide_halves(rows.data + (r + 1) * rows.row + i) << 16;
      __builtin_memcpy(to + r / 2 * width + i, &both, sizeof both);
    }
}

// to [width / 2][kTile]: pairs of each row, across; rows beyond `count` are zeros.
void pairs_across(const Narrow& rows, int64_t count, int64_t width, uint32_t* to) {
  for (int64_t q = 0; q < kTile; ++q)
    for (int64_t i = 0; i < width / 2; ++i) {
      uint32_t pair = 0;
      if (q < count) __builtin_memcpy(&pair, rows.data + q * rows.row + 2 * i, sizeof pair);
      to[i * kTile + q] = pair;
    }
}

// to [rows / 2, rounded up][kTile]: rows 2r and 2r + 1 of `from` [rows][kTile] in bfloat16, element by element.
SFSDP_INLINE void store_pair(V even, V odd, uint32_t* to) {
  const H low = SFSDP_TO_HALF(even), high = SFSDP_TO_HALF(odd);
  const U both = __builtin_convertvector(low, U) | __builtin_convertvector(high, U) << 16;
  __builtin_memcpy(to, &both, sizeof both);
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

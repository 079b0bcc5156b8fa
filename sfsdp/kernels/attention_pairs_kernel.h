// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of attention.h in bfloat16, for processors that multiply pairs of it (SFSDP_DOT): weights and slopes are rounded to
// bfloat16 before they are multiplied, sums are float32. See vector.h for how it is compiled.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

// Rows of bfloat16, where they lie.
struct Narrow {
  const uint16_t* data = nullptr;
  int64_t row = 0;
};

Narrow narrow_rows(const Heads& heads, int64_t batch, int64_t head, int64_t first) {
  return {static_cast<const uint16_t*>(heads.data) + batch * heads.batch + head * heads.head + first * heads.row,
          heads.row};
}

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

// Two rows of floats as pairs, as pair_rows has them.
SFSDP_INLINE void store_pair(V even, V odd, uint32_t* to) {
  const H low = SFSDP_TO_HALF(even), high = SFSDP_TO_HALF(odd);
  const U both = __builtin_convertvector(low, U) | __builtin_convertvector(high, U) << 16;
  __builtin_memcpy(to, &both, sizeof both);
}

void forward_tile_of_pairs(const AttentionUnit& unit, const Queries& tile, float* space) {
  const int64_t head = tile.head, first = tile.first, count = tile.count;
  const Attention& a = *unit.attention;
  const AttentionShape& s = a.shape;
  const int64_t block = kTile * s.width;
  float *result = space, *scores = result + block;
  uint32_t* weights = reinterpret_cast<uint32_t*>(scores + kTile * kTile);  // pairs of keys
  uint32_t *queries = weights + kTile * kTile / 2, *values = queries + block / 2;
  Softmax softmax;
  begin(softmax);
  pairs_across(narrow_rows(a.query, unit.sample, head, first), count, s.width, queries);
  const V scale = all(s.scale);
  bool begun = false;
  for_keys(unit, tile, [&](const Keys& of_keys) {
    const int64_t k = of_keys.first, keys = of_keys.count;
    const Narrow key = narrow_rows(a.key, unit.sample, unit.group, k);
    multiply(key.data, key.row, 2, queries, kTile, scores, kTile, keys, kTile, s.width / 2, false);
    mask(unit, tile.position, of_keys.position, keys, scores);
    add_keys(softmax, scores, keys, scale, [&](int64_t q, V base) {
      V added = V{};
      for (int64_t r = 0; r < keys; r += 2) {
        const V even = exp(load(scores + r * kTile + q) * scale - base);
        V odd = V{};
        if (r + 1 < keys) odd = exp(load(scores + (r + 1) * kTile + q) * scale - base);
        added += even + odd;
        store_pair(even, odd, weights + r / 2 * kTile + q);
      }
      return added;
    });
    if (begun) shrink_rows(softmax, count, s.width, result);
    pair_rows(narrow_rows(a.value, unit.sample, unit.group, k), keys, s.width, values);
    multiply(reinterpret_cast<const uint16_t*>(weights), 2, 2 * kTile, values, s.width, result, s.width, count, s.width,
             (keys + 1) / 2, begun);
    begun = true;
  });
  write_results(unit, head, first, count, softmax, result, begun);
}

// What backward keeps of a block of queries, and the sums of the unit.
struct PairsSpace {
  float *grad_queries, *scores, *slopes, *grad_keys, *grad_values;
  uint32_t *queries_across, *grads_across, *queries, *grads, *key, *slope_pairs;
  uint16_t *weight_rows, *slope_rows;  // [kTile keys][kTile queries]
};

PairsSpace pairs_space(float* scratch, const AttentionShape& s) {
  const int64_t block = kTile * s.width, half = block / 2, tile = kTile * kTile;
  PairsSpace p;
  p.grad_queries = scratch;
  p.scores = p.grad_queries + block;
  p.slopes = p.scores + tile;
  uint32_t* at = reinterpret_cast<uint32_t*>(p.slopes + tile);
  uint32_t** const blocks[] = {&p.queries_across, &p.grads_across, &p.queries, &p.grads, &p.key};
  for (uint32_t** b : blocks) *b = at, at += half;
  p.slope_pairs = at;
  p.weight_rows = reinterpret_cast<uint16_t*>(at + tile / 2);
  p.slope_rows = p.weight_rows + tile;
  p.grad_keys = reinterpret_cast<float*>(at + tile + tile / 2);
  p.grad_values = p.grad_keys + s.keys * s.width;
  return p;
}

void backward_tile_of_pairs(const AttentionUnit& unit, const Queries& tile, const PairsSpace& p) {
  const int64_t head = tile.head, first = tile.first, count = tile.count;
  const Attention& a = *unit.attention;
  const AttentionShape& s = a.shape;
  float base[kTile], delta[kTile];
  const Narrow queries = narrow_rows(a.query, unit.sample, head, first),
               grads = narrow_rows(a.grad_out, unit.sample, head, first),
               out = narrow_rows(a.out, unit.sample, head, first);
  read_results(unit, head, first, count, out, grads, base, delta);
  pairs_across(queries, count, s.width, p.queries_across);
  pairs_across(grads, count, s.width, p.grads_across);
  pair_rows(queries, count, s.width, p.queries);
  pair_rows(grads, count, s.width, p.grads);
  const V scale = all(s.scale);
  const int64_t query_pairs = (count + 1) / 2;
  bool begun = false;
  for_keys(unit, tile, [&](const Keys& of_keys) {
    const int64_t k = of_keys.first, keys = of_keys.count;
    const Narrow key = narrow_rows(a.key, unit.sample, unit.group, k),
                 value = narrow_rows(a.value, unit.sample, unit.group, k);
    multiply(key.data, key.row, 2, p.queries_across, kTile, p.scores, kTile, keys, kTile, s.width / 2, false);
    mask(unit, tile.position, of_keys.position, keys, p.scores);
    multiply(value.data, value.row, 2, p.grads_across, kTile, p.slopes, kTile, keys, kTile, s.width / 2, false);
    for (int64_t r = 0; r < keys; ++r)
      for (int64_t q = 0; q < kTile; q += kLanes) {
        const int64_t at = r * kTile + q;
        const V weight = exp(load(p.scores + at) * scale - load(base + q));
        const V slope = weight * (load(p.slopes + at) - load(delta + q)) * scale;
        const H low = SFSDP_TO_HALF(weight), low_slope = SFSDP_TO_HALF(slope);
        __builtin_memcpy(p.weight_rows + at, &low, sizeof low);
        __builtin_memcpy(p.slope_rows + at, &low_slope, sizeof low_slope);
      }
    // Queries beyond `count` have weights of zeros' scores, but no rows that these are multiplied with: their pair of rows is zeros.
    pair_rows({p.slope_rows, kTile}, keys, kTile, p.slope_pairs);
    multiply(p.weight_rows, kTile, 2, p.grads, s.width, p.grad_values + k * s.width, s.width, keys, s.width,
             query_pairs, true);
    multiply(p.slope_rows, kTile, 2, p.queries, s.width, p.grad_keys + k * s.width, s.width, keys, s.width, query_pairs,
             true);
    pair_rows(key, keys, s.width, p.key);
    multiply(reinterpret_cast<const uint16_t*>(p.slope_pairs), 2, 2 * kTile, p.key, s.width, p.grad_queries, s.width,
             count, s.width, (keys + 1) / 2, begun);
    begun = true;
  });
  if (!begun) clear_rows(p.grad_queries, count, s.width);
  write_rows(p.grad_queries, nullptr, a.grad_query, unit.sample, head, first, count, s);
}

void forward_of_pairs(const AttentionUnit& unit) {
  for_tiles(unit, [&](const Queries& tile) { forward_tile_of_pairs(unit, tile, unit.scratch); });
}

void backward_of_pairs(const AttentionUnit& unit) {
  const PairsSpace space = pairs_space(unit.scratch, unit.attention->shape);
  add_gradients(unit, space, [&](const Queries& tile) { backward_tile_of_pairs(unit, tile, space); });
}

void attention_forward_of_any(const AttentionUnit& unit) {
  unit.attention->shape.dtype == ir::DType::bf16 ? forward_of_pairs(unit) : attention_forward(unit);
}
void attention_backward_of_any(const AttentionUnit& unit) {
  unit.attention->shape.dtype == ir::DType::bf16 ? backward_of_pairs(unit) : attention_backward(unit);
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of attention.h; see vector.h for how it is compiled.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

struct Block {
  const float* data = nullptr;
  int64_t row = 0;
};

// Rows first to first + count - 1 of a head in float32: where they lie, or in `space`.
Block rows_of(const Heads& heads, int64_t batch, int64_t head, int64_t first, int64_t count,
              const AttentionShape& shape, float* space) {
  const int64_t at = batch * heads.batch + head * heads.head + first * heads.row;
  if (shape.dtype == ir::DType::f32) return {static_cast<const float*>(heads.data) + at, heads.row};
  const uint16_t* data = static_cast<const uint16_t*>(heads.data) + at;
  for (int64_t r = 0; r < count; ++r)
    for (int64_t i = 0; i < shape.width; i += kLanes)
      store(space + r * shape.width + i, load(data + r * heads.row + i));
  return {space, shape.width};
}

// to [width][kTile] = the block, transposed; queries beyond `count` are zeros.
void transpose(const Block& block, int64_t count, int64_t width, float* to) {
  for (int64_t q = 0; q < kTile; ++q)
    for (int64_t i = 0; i < width; ++i) to[i * kTile + q] = q < count ? block.data[q * block.row + i] : 0.0f;
}

void forward_tile(const AttentionUnit& unit, const Queries& tile, float* space) {
  const int64_t head = tile.head, first = tile.first, count = tile.count;
  const Attention& a = *unit.attention;
  const AttentionShape& s = a.shape;
  const int64_t block = kTile * s.width;
  float *queries = space, *result = queries + block, *key_space = result + block, *value_space = key_space + block,
        *scores = value_space + block;
  Softmax softmax;
  begin(softmax);
  transpose(rows_of(a.query, unit.sample, head, first, count, s, key_space), count, s.width, queries);
  const V scale = all(s.scale);
  bool begun = false;
  for_keys(unit, tile, [&](const Keys& of_keys) {
    const int64_t k = of_keys.first, keys = of_keys.count;
    const Block key = rows_of(a.key, unit.sample, unit.group, k, keys, s, key_space);
    multiply(key.data, key.row, 1, queries, kTile, scores, kTile, keys, kTile, s.width, false);
    mask(unit, tile.position, of_keys.position, keys, scores);
    add_keys(softmax, scores, keys, scale, [&](int64_t q, V base) {
      V added = V{};
      for (int64_t r = 0; r < keys; ++r) {
        const V p = exp(load(scores + r * kTile + q) * scale - base);
        store(scores + r * kTile + q, p);
        added += p;
      }
      return added;
    });
    if (begun) shrink_rows(softmax, count, s.width, result);
    const Block value = rows_of(a.value, unit.sample, unit.group, k, keys, s, value_space);
    multiply(scores, 1, kTile, value.data, value.row, result, s.width, count, s.width, keys, begun);
    begun = true;
  });
  write_results(unit, head, first, count, softmax, result, begun);
}

void attention_forward(const AttentionUnit& unit) {
  for_tiles(unit, [&](const Queries& tile) { forward_tile(unit, tile, unit.scratch); });
}

// What backward keeps of a block of queries, and the sums of the unit.
struct BackwardSpace {
  float *queries, *queries_across, *grads, *grads_across, *grad_queries, *key, *value, *weights, *slopes, *grad_keys,
      *grad_values;
};

BackwardSpace backward_space(float* scratch, const AttentionShape& s) {
  const int64_t block = kTile * s.width, scores = kTile * kTile;
  BackwardSpace space;
  float** const blocks[] = {&space.queries,      &space.queries_across, &space.grads,
                            &space.grads_across, &space.grad_queries,   &space.key,
                            &space.value};
  for (float** b : blocks) *b = scratch, scratch += block;
  space.weights = scratch;
  space.slopes = scratch + scores;
  space.grad_keys = scratch + 2 * scores;
  space.grad_values = space.grad_keys + s.keys * s.width;
  return space;
}

void backward_tile(const AttentionUnit& unit, const Queries& tile, const BackwardSpace& space) {
  const int64_t head = tile.head, first = tile.first, count = tile.count;
  const Attention& a = *unit.attention;
  const AttentionShape& s = a.shape;
  float base[kTile], delta[kTile];
  // The results are wanted once, where the keys will be.
  const Block out = rows_of(a.out, unit.sample, head, first, count, s, space.key);
  const Block grads = rows_of(a.grad_out, unit.sample, head, first, count, s, space.grads);
  read_results(unit, head, first, count, out, grads, base, delta);
  const Block queries = rows_of(a.query, unit.sample, head, first, count, s, space.queries);
  transpose(queries, count, s.width, space.queries_across);
  transpose(grads, count, s.width, space.grads_across);
  const V scale = all(s.scale);
  bool begun = false;
  for_keys(unit, tile, [&](const Keys& of_keys) {
    const int64_t k = of_keys.first, keys = of_keys.count;
    const Block key = rows_of(a.key, unit.sample, unit.group, k, keys, s, space.key);
    const Block value = rows_of(a.value, unit.sample, unit.group, k, keys, s, space.value);
    multiply(key.data, key.row, 1, space.queries_across, kTile, space.weights, kTile, keys, kTile, s.width, false);
    mask(unit, tile.position, of_keys.position, keys, space.weights);
    multiply(value.data, value.row, 1, space.grads_across, kTile, space.slopes, kTile, keys, kTile, s.width, false);
    for (int64_t r = 0; r < keys; ++r)
      for (int64_t q = 0; q < kTile; q += kLanes) {
        float *weight = space.weights + r * kTile + q, *slope = space.slopes + r * kTile + q;
        const V p = exp(load(weight) * scale - load(base + q));
        store(weight, p);
        store(slope, p * (load(slope) - load(delta + q)) * scale);
      }
    multiply(space.weights, kTile, 1, grads.data, grads.row, space.grad_values + k * s.width, s.width, keys, s.width,
             count, true);
    multiply(space.slopes, kTile, 1, queries.data, queries.row, space.grad_keys + k * s.width, s.width, keys, s.width,
             count, true);
    multiply(space.slopes, 1, kTile, key.data, key.row, space.grad_queries, s.width, count, s.width, keys, begun);
    begun = true;
  });
  if (!begun) clear_rows(space.grad_queries, count, s.width);
  write_rows(space.grad_queries, nullptr, a.grad_query, unit.sample, head, first, count, s);
}

void attention_backward(const AttentionUnit& unit) {
  const BackwardSpace space = backward_space(unit.scratch, unit.attention->shape);
  add_gradients(unit, space, [&](const Queries& tile) { backward_tile(unit, tile, space); });
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

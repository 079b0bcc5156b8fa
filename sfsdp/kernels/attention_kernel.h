// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of attention.h; see vector.h for how it is compiled.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

struct Block {
  const float* data = nullptr;
  int64_t row = 0;
};

SFSDP_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

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

// Writes `count` rows of `from`, each times its factor, to a head; to bf16 rounded to nearest even.
void write_rows(const float* from, const float* factors, const Heads& heads, int64_t batch, int64_t head, int64_t first,
                int64_t count, const AttentionShape& shape) {
  const int64_t at = batch * heads.batch + head * heads.head + first * heads.row;
  for (int64_t r = 0; r < count; ++r)
    for (int64_t i = 0; i < shape.width; i += kLanes) {
      V v = load(from + r * shape.width + i);
      if (factors) v *= all(factors[r]);
      if (shape.dtype == ir::DType::f32)
        store(static_cast<float*>(heads.data) + at + r * heads.row + i, v);
      else
        store(static_cast<uint16_t*>(heads.data) + at + r * heads.row + i, v);
    }
}

// to [width][kTile] = the block, transposed; queries beyond `count` are zeros.
void transpose(const Block& block, int64_t count, int64_t width, float* to) {
  for (int64_t q = 0; q < kTile; ++q)
    for (int64_t i = 0; i < width; ++i) to[i * kTile + q] = q < count ? block.data[q * block.row + i] : 0.0f;
}

// Scores [keys][kTile] that a query may not see become -inf.
void mask(const AttentionUnit& unit, int64_t first_query, int64_t first_key, int64_t keys, float* scores) {
  const AttentionShape& shape = unit.attention->shape;
  const bool diagonal = shape.causal && first_key + keys - 1 > first_query;
  if (!diagonal && !unit.documents) return;
  I lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  for (int64_t k = 0; k < keys; ++k)
    for (int64_t q = 0; q < kTile; q += kLanes) {
      I hidden = I{};
      if (diagonal) hidden |= lanes + static_cast<int32_t>(first_query + q - first_key - k) < 0;
      if (unit.documents) {
        I of_query;
        for (int i = 0; i < kLanes; ++i) {
          const int64_t at = smaller(first_query + q + i, shape.queries - 1);
          of_query[i] = unit.documents[at];
        }
        hidden |= of_query != unit.documents[first_key + k];
      }
      float* at = scores + k * kTile + q;
      store(at, hidden ? all(kMinusInfinity) : load(at));
    }
}

// Whether no query of the tile has a key of it in its document.
bool is_hidden(const AttentionUnit& unit, int64_t first_query, int64_t queries, int64_t first_key, int64_t keys) {
  if (!unit.documents) return false;
  int32_t least_query = INT32_MAX, most_query = 0, least_key = INT32_MAX, most_key = 0;
  for (int64_t q = 0; q < queries; ++q) {
    const int32_t d = unit.documents[first_query + q];
    least_query = d < least_query ? d : least_query;
    most_query = d > most_query ? d : most_query;
  }
  for (int64_t k = 0; k < keys; ++k) {
    const int32_t d = unit.documents[first_key + k];
    least_key = d < least_key ? d : least_key;
    most_key = d > most_key ? d : most_key;
  }
  return most_key < least_query || most_query < least_key;
}

void forward_tile(const AttentionUnit& unit, int64_t head, int64_t first, int64_t count, float* space) {
  const Attention& a = *unit.attention;
  const AttentionShape& s = a.shape;
  const int64_t block = kTile * s.width;
  float *queries = space, *result = queries + block, *key_space = result + block, *value_space = key_space + block,
        *scores = value_space + block;
  float largest[kTile], sum[kTile], shrink[kTile];
  transpose(rows_of(a.query, unit.sample, head, first, count, s, key_space), count, s.width, queries);
  for (int64_t q = 0; q < kTile; ++q) largest[q] = kMinusInfinity, sum[q] = 0;
  const V scale = all(s.scale);
  const int64_t end = s.causal ? smaller(first + count, s.keys) : s.keys;
  bool begun = false;
  for (int64_t k = 0; k < end; k += kTile) {
    const int64_t keys = smaller(kTile, end - k);
    if (is_hidden(unit, first, count, k, keys)) continue;
    const Block key = rows_of(a.key, unit.sample, unit.group, k, keys, s, key_space);
    multiply(key.data, key.row, 1, queries, kTile, scores, kTile, keys, kTile, s.width, false);
    mask(unit, first, k, keys, scores);
    for (int64_t q = 0; q < kTile; q += kLanes) {
      V most = load(scores + q);
      for (int64_t r = 1; r < keys; ++r) most = larger(load(scores + r * kTile + q), most);
      const V before = load(largest + q);
      const V now = larger(most * scale, before);
      const V base = now == all(kMinusInfinity) ? V{} : now;  // a query that has seen no key yet
      V added = V{};
      for (int64_t r = 0; r < keys; ++r) {
        const V p = exp(load(scores + r * kTile + q) * scale - base);
        store(scores + r * kTile + q, p);
        added += p;
      }
      const V shrunk = exp(before - base);
      store(shrink + q, shrunk);
      store(sum + q, load(sum + q) * shrunk + added);
      store(largest + q, now);
    }
    if (begun)
      for (int64_t q = 0; q < count; ++q)
        for (int64_t i = 0; i < s.width; i += kLanes)
          store(result + q * s.width + i, load(result + q * s.width + i) * all(shrink[q]));
    const Block value = rows_of(a.value, unit.sample, unit.group, k, keys, s, value_space);
    multiply(scores, 1, kTile, value.data, value.row, result, s.width, count, s.width, keys, begun);
    begun = true;
  }
  float* log_sum = a.log_sum.data + unit.sample * a.log_sum.batch + head * a.log_sum.head;
  for (int64_t q = 0; q < count; ++q) {
    log_sum[(first + q) * a.log_sum.row] = static_cast<float>(largest[q] + __builtin_log(static_cast<double>(sum[q])));
    shrink[q] = 1.0f / sum[q];
  }
  write_rows(result, shrink, a.out, unit.sample, head, first, count, s);
}

void attention_forward(const AttentionUnit& unit) {
  const AttentionShape& s = unit.attention->shape;
  const int64_t shared = s.heads / s.groups;
  for (int64_t head = unit.group * shared; head < (unit.group + 1) * shared; ++head)
    for (int64_t q = 0; q < s.queries; q += kTile)
      forward_tile(unit, head, q, smaller(kTile, s.queries - q), unit.scratch);
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

void backward_tile(const AttentionUnit& unit, int64_t head, int64_t first, int64_t count, const BackwardSpace& space) {
  const Attention& a = *unit.attention;
  const AttentionShape& s = a.shape;
  float base[kTile], delta[kTile];
  // The results are wanted once, where the keys will be.
  const Block out = rows_of(a.out, unit.sample, head, first, count, s, space.key);
  const Block grads = rows_of(a.grad_out, unit.sample, head, first, count, s, space.grads);
  const float* log_sum = a.log_sum.data + unit.sample * a.log_sum.batch + head * a.log_sum.head;
  for (int64_t q = 0; q < kTile; ++q) {
    base[q] = q < count ? log_sum[(first + q) * a.log_sum.row] : 0.0f;
    V dot = V{};
    if (q < count)
      for (int64_t i = 0; i < s.width; i += kLanes)
        dot += load(out.data + q * out.row + i) * load(grads.data + q * grads.row + i);
    delta[q] = 0;
    for (int i = 0; i < kLanes; ++i) delta[q] += dot[i];
  }
  const Block queries = rows_of(a.query, unit.sample, head, first, count, s, space.queries);
  transpose(queries, count, s.width, space.queries_across);
  transpose(grads, count, s.width, space.grads_across);
  const V scale = all(s.scale);
  const int64_t end = s.causal ? smaller(first + count, s.keys) : s.keys;
  bool begun = false;
  for (int64_t k = 0; k < end; k += kTile) {
    const int64_t keys = smaller(kTile, end - k);
    if (is_hidden(unit, first, count, k, keys)) continue;
    const Block key = rows_of(a.key, unit.sample, unit.group, k, keys, s, space.key);
    const Block value = rows_of(a.value, unit.sample, unit.group, k, keys, s, space.value);
    multiply(key.data, key.row, 1, space.queries_across, kTile, space.weights, kTile, keys, kTile, s.width, false);
    mask(unit, first, k, keys, space.weights);
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
  }
  write_rows(space.grad_queries, nullptr, a.grad_query, unit.sample, head, first, count, s);
}

void attention_backward(const AttentionUnit& unit) {
  const Attention& a = *unit.attention;
  const AttentionShape& s = a.shape;
  const BackwardSpace space = backward_space(unit.scratch, s);
  for (int64_t i = 0; i < s.keys * s.width; i += kLanes)
    store(space.grad_keys + i, V{}), store(space.grad_values + i, V{});
  const int64_t shared = s.heads / s.groups;
  for (int64_t head = unit.group * shared; head < (unit.group + 1) * shared; ++head)
    for (int64_t q = 0; q < s.queries; q += kTile) backward_tile(unit, head, q, smaller(kTile, s.queries - q), space);
  write_rows(space.grad_keys, nullptr, a.grad_key, unit.sample, unit.group, 0, s.keys, s);
  write_rows(space.grad_values, nullptr, a.grad_value, unit.sample, unit.group, 0, s.keys, s);
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

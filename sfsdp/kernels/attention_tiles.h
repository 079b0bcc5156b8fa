// SPDX-License-Identifier: BSD-3-Clause
// What attention in float32 and in pairs of bfloat16 has in common: which tiles there are, what a tile may see, its softmax, and what
// is read and written once for all keys. See vector.h for how it is compiled.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

SFSDP_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

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

// Scores [keys][kTile] that a query may not see become -inf.
//   first_query, first_key: the positions of the first; the others of a tile follow it
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
          const int64_t at = smaller(first_query + q + i, shape.positions() - 1);
          of_query[i] = unit.documents[at];
        }
        hidden |= of_query != unit.documents[first_key + k];
      }
      float* at = scores + k * kTile + q;
      store(at, hidden ? all(kMinusInfinity) : load(at));
    }
}

// Whether no query of the tile has a key of it in its document.
//   first_query, first_key: their positions
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

// The softmax of a tile of queries, over the keys so far.
struct Softmax {
  float largest[kTile], sum[kTile];  // of scores; of weights, whose base is the largest
  float shrink[kTile];               // what weights of earlier keys are multiplied by
};

void begin(Softmax& softmax) {
  for (int64_t q = 0; q < kTile; ++q) softmax.largest[q] = kMinusInfinity, softmax.sum[q] = 0;
}

// Adds the keys of scores [keys][kTile].
//   weigh(q, base): makes the weights exp(score · scale - base) of queries q to q + kLanes - 1, and returns their sums
template <class Weigh>
SFSDP_INLINE void add_keys(Softmax& softmax, const float* scores, int64_t keys, V scale, const Weigh& weigh) {
  for (int64_t q = 0; q < kTile; q += kLanes) {
    V most = load(scores + q);
    for (int64_t r = 1; r < keys; ++r) most = larger(load(scores + r * kTile + q), most);
    const V before = load(softmax.largest + q);
    const V now = larger(most * scale, before);
    const V base = now == all(kMinusInfinity) ? V{} : now;  // a query that has seen no key yet
    const V added = weigh(q, base);
    const V shrunk = exp(before - base);
    store(softmax.shrink + q, shrunk);
    store(softmax.sum + q, load(softmax.sum + q) * shrunk + added);
    store(softmax.largest + q, now);
  }
}

void shrink_rows(const Softmax& softmax, int64_t count, int64_t width, float* result) {
  for (int64_t q = 0; q < count; ++q)
    for (int64_t i = 0; i < width; i += kLanes)
      store(result + q * width + i, load(result + q * width + i) * all(softmax.shrink[q]));
}

void clear_rows(float* rows, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count * width; i += kLanes) store(rows + i, V{});
}

// Results and logarithms of sums, once all keys are added.
//   begun: whether some were, so that there is a result
void write_results(const AttentionUnit& unit, int64_t head, int64_t first, int64_t count, Softmax& softmax,
                   float* result, bool begun) {
  const Attention& a = *unit.attention;
  if (!begun) clear_rows(result, count, a.shape.width);
  float* log_sum = a.log_sum.data + unit.sample * a.log_sum.batch + head * a.log_sum.head;
  for (int64_t q = 0; q < count; ++q) {
    log_sum[(first + q) * a.log_sum.row] =
        static_cast<float>(softmax.largest[q] + __builtin_log(static_cast<double>(softmax.sum[q])));
    softmax.shrink[q] = softmax.sum[q] == 0.0f ? 0.0f : 1.0f / softmax.sum[q];
  }
  write_rows(result, softmax.shrink, a.out, unit.sample, head, first, count, a.shape);
}

// Queries first to first + count - 1 of a head, which stand at `position` and the next ones.
struct Queries {
  int64_t head, first, count, position;
};

// Calls tile(queries) for all queries of the unit, of one run of positions each, so that a tile's follow each other.
template <class Tile>
SFSDP_INLINE void for_tiles(const AttentionUnit& unit, const Tile& tile) {
  const AttentionShape& s = unit.attention->shape;
  const int64_t shared = s.heads / s.groups;
  const ir::PositionRun whole[2] = {{0, s.queries}, {0, 0}};
  const ir::PositionRun* runs = s.is_part ? unit.attention->positions : whole;
  for (int64_t head = unit.group * shared; head < (unit.group + 1) * shared; ++head)
    for (int64_t r = 0; r < 2; ++r) {
      const int64_t before = r == 0 ? 0 : runs[0].count;
      for (int64_t q = 0; q < runs[r].count; q += kTile)
        tile(Queries{head, before + q, smaller(kTile, runs[r].count - q), runs[r].first + q});
    }
}

// Keys of a head: rows first to first + count - 1, which stand at `position` and the next ones.
struct Keys {
  int64_t first, count, position;
};

// Calls block(keys) for all keys that some query of the tile sees, of one run of positions each.
template <class Visit>
SFSDP_INLINE void for_keys(const AttentionUnit& unit, const Queries& tile, const Visit& block) {
  const AttentionShape& s = unit.attention->shape;
  const ir::PositionRun whole[2] = {{0, s.keys}, {0, 0}};
  const ir::PositionRun* runs = s.length > 0 ? unit.attention->key_positions : whole;
  for (int64_t r = 0; r < 2; ++r) {
    const int64_t before = r == 0 ? 0 : runs[0].count;
    const int64_t end = s.causal ? smaller(tile.position + tile.count - runs[r].first, runs[r].count) : runs[r].count;
    for (int64_t k = 0; k < end; k += kTile) {
      const int64_t keys = smaller(kTile, end - k), position = runs[r].first + k;
      if (!is_hidden(unit, tile.position, tile.count, position, keys)) block(Keys{before + k, keys, position});
    }
  }
}

// What backward reads of what forward has left: the logarithms of sums, and Σ result · gradient of each query; 0 beyond `count`.
//   Rows: data and row, as Block
template <class Rows>
SFSDP_INLINE void read_results(const AttentionUnit& unit, int64_t head, int64_t first, int64_t count, const Rows& out,
                               const Rows& grads, float* log_sums, float* delta) {
  const Attention& a = *unit.attention;
  const float* log_sum = a.log_sum.data + unit.sample * a.log_sum.batch + head * a.log_sum.head;
  for (int64_t q = 0; q < kTile; ++q) {
    log_sums[q] = q < count ? log_sum[(first + q) * a.log_sum.row] : 0.0f;
    V dot = V{};
    if (q < count)
      for (int64_t i = 0; i < a.shape.width; i += kLanes)
        dot += load(out.data + q * out.row + i) * load(grads.data + q * grads.row + i);
    delta[q] = sum_of_lanes(dot);
  }
}

// Space: with grad_keys and grad_values [keys][width], to which all tiles add.
template <class Space, class Tile>
SFSDP_INLINE void add_gradients(const AttentionUnit& unit, const Space& space, const Tile& tile) {
  const Attention& a = *unit.attention;
  const AttentionShape& s = a.shape;
  for (int64_t i = 0; i < s.keys * s.width; i += kLanes)
    store(space.grad_keys + i, V{}), store(space.grad_values + i, V{});
  for_tiles(unit, tile);
  write_rows(space.grad_keys, nullptr, a.grad_key, unit.sample, unit.group, 0, s.keys, s);
  write_rows(space.grad_values, nullptr, a.grad_value, unit.sample, unit.group, 0, s.keys, s);
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

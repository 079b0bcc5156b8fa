// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of rope.h; see vector.h for how it is compiled.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

struct Angles {
  V first_cos, first_sin, second_cos, second_sin;  // of the first and the second element of each pair
};
struct Pair {
  V first, second;
};

SFSDP_INLINE Pair turned(Pair p, const Angles& a, bool inverse) {
  if (inverse)
    return {p.first * a.first_cos + p.second * a.second_sin, p.second * a.second_cos - p.first * a.first_sin};
  return {p.first * a.first_cos - p.second * a.first_sin, p.second * a.second_cos + p.first * a.second_sin};
}

// Pairs j to j + kLanes - 1, those beyond `pairs` as 0; step 2: neighbours, which lie at 2 j.
template <class T>
SFSDP_INLINE Pair neighbours(const T* row, int64_t j, int64_t pairs) {
  Pair p = {V{}, V{}};
  for (int lane = 0; lane < kLanes && j + lane < pairs; ++lane) {
    p.first[lane] = as_float(row[2 * (j + lane)]);
    p.second[lane] = as_float(row[2 * (j + lane) + 1]);
  }
  return p;
}
template <class T>
SFSDP_INLINE Pair whole_neighbours(const T* row) {
  const V low = load(row), high = load(row + kLanes);
  return {even_of(low, high), odd_of(low, high)};
}
template <class T>
SFSDP_INLINE Pair neighbours_at(const T* row, int64_t j, int64_t pairs) {
  return j + kLanes <= pairs ? whole_neighbours(row + 2 * j) : neighbours(row, j, pairs);
}

template <class T, class A>
void rope_row(const Rope& r, const T* x, const A* cos, const A* sin, T* out) {
  for (int64_t j = 0; j < r.pairs; j += kLanes) {
    Angles a;
    if (r.complex) {
      const Pair both = neighbours_at(reinterpret_cast<const float*>(cos), j, r.pairs);
      a = {both.first, both.second, both.first, both.second};
    } else {
      a.first_cos = a.second_cos = part(cos, j, r.pairs);
      a.first_sin = a.second_sin = part(sin, j, r.pairs);
      if (r.full) {
        a.second_cos = part(cos + r.pairs, j, r.pairs);
        a.second_sin = part(sin + r.pairs, j, r.pairs);
      }
    }
    if (r.halves) {
      const Pair y = turned({part(x, j, r.pairs), part(x + r.pairs, j, r.pairs)}, a, r.inverse);
      store_part(out, j, r.pairs, y.first);
      store_part(out + r.pairs, j, r.pairs, y.second);
      continue;
    }
    const Pair y = turned(neighbours_at(x, j, r.pairs), a, r.inverse);
    if (j + kLanes <= r.pairs) {
      store(out + 2 * j, low_of(y.first, y.second));
      store(out + 2 * j + kLanes, high_of(y.first, y.second));
      continue;
    }
    for (int lane = 0; j + lane < r.pairs; ++lane) {
      out[2 * (j + lane)] = rounded<T>(y.first[lane]);
      out[2 * (j + lane) + 1] = rounded<T>(y.second[lane]);
    }
  }
}

template <class T, class A>
void rope_of(const Rope& r, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    int64_t rest = row, x = 0, cos = 0, sin = 0, out = 0;
    for (int d = kRopeDims - 1; d >= 0; --d) {
      const int64_t index = rest % r.sizes[d];
      rest /= r.sizes[d];
      x += index * r.x.strides[d];
      cos += index * r.cos.strides[d];
      sin += index * r.sin.strides[d];
      out += index * r.out.strides[d];
    }
    // A complex number is two floats.
    rope_row(r, static_cast<const T*>(r.x.data) + x, static_cast<const A*>(r.cos.data) + (r.complex ? 2 : 1) * cos,
             static_cast<const A*>(r.sin.data) + sin, static_cast<T*>(const_cast<void*>(r.out.data)) + out);
  }
}

void rope_some(const Rope& r, int64_t begin, int64_t end) {
  const bool wide = r.dtype == ir::DType::f32, wide_angle = r.complex || r.angle_dtype == ir::DType::f32;
  if (wide && wide_angle)
    rope_of<float, float>(r, begin, end);
  else if (wide)
    rope_of<float, uint16_t>(r, begin, end);
  else if (wide_angle)
    rope_of<uint16_t, float>(r, begin, end);
  else
    rope_of<uint16_t, uint16_t>(r, begin, end);
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

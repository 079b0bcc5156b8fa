// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of adam.h; see vector.h for how it is compiled.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

template <bool kDecoupled>
SFSDP_INLINE void adam_elements(const Adam& a, const AdamFactors& f) {
  for (int64_t i = 0; i < a.count; i += kLanes) {
    V grad = part(a.grad, i, a.count) * all(a.clip);
    V param = part(a.param, i, a.count);
    if (kDecoupled)
      param *= all(f.decay);
    else
      grad += param * all(f.decay);
    const V first = part(a.exp_avg, i, a.count) * all(f.first) + grad * all(f.rest_of_first);
    const V second = part(a.exp_avg_sq, i, a.count) * all(f.second) + grad * grad * all(f.rest_of_second);
    param -= all(f.size) * first / (SFSDP_SQRT(second) / all(f.root) + all(f.eps));
    store_part(a.param, i, a.count, param);
    store_part(a.exp_avg, i, a.count, first);
    store_part(a.exp_avg_sq, i, a.count, second);
  }
}

void adam_update(const Adam& a, const AdamFactors& f) {
  a.decoupled ? adam_elements<true>(a, f) : adam_elements<false>(a, f);
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

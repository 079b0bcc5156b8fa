// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/counter_rng.h"

#include <ATen/Dispatch.h>

#include <cmath>
#include <numbers>

#include "sfsdp/base/check.h"
#include "sfsdp/base/philox.h"

namespace sfsdp::exec {
namespace {

// In (0, 1): 53 bits, never 0, so that a logarithm can follow.
double unit(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 21) ^ (low >> 11);
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

// Calls draw(u0, u1) for each element; both uniforms come from the element's own counter.
template <class Draw>
void fill(const at::Tensor& tensor, const RandomStream& stream, Draw draw) {
  SFSDP_CHECK(tensor.is_contiguous(), "random fill of a strided tensor ", tensor.sizes());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, tensor.scalar_type(), "counter_rng", [&] {
    scalar_t* out = tensor.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const auto words = philox4x32(stream.key, stream.stream, static_cast<uint64_t>(stream.first_element + i));
      out[i] = static_cast<scalar_t>(draw(unit(words[0], words[1]), unit(words[2], words[3])));
    }
  });
}

}  // namespace

void fill_uniform(const at::Tensor& tensor, double low, double high, const RandomStream& stream) {
  fill(tensor, stream, [&](double u, double) { return low + (high - low) * u; });
}

void fill_normal(const at::Tensor& tensor, double mean, double std, const RandomStream& stream) {
  fill(tensor, stream, [&](double u, double v) {  // Box–Muller
    return mean + std * std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
  });
}

void fill_bernoulli(const at::Tensor& tensor, double p, const RandomStream& stream) {
  fill(tensor, stream, [&](double u, double) { return u < p ? 1.0 : 0.0; });
}

}  // namespace sfsdp::exec

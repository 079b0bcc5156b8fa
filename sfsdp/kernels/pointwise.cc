// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/pointwise.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels {

namespace {

// How many steps and outputs read the register.
int64_t readers_of(const Pointwise& call, uint8_t r) {
  int64_t count = 0;
  for (const PointStep& step : call.steps) {
    const bool reads_c = step.op == PointOp::SiluProductBackward && step.c == r;
    count += step.a == r || step.b == r || reads_c ? 1 : 0;
  }
  for (const PointData& output : call.outputs) count += output.in == r ? 1 : 0;
  return count;
}

// The other factor of a product that has r as one; nullopt: r is none, or both.
std::optional<uint8_t> other_factor(const PointStep& product, uint8_t r) {
  if (product.op != PointOp::Multiply || product.a == product.b) return std::nullopt;
  if (product.a == r) return product.b;
  return product.b == r ? std::optional(product.a) : std::nullopt;
}

// silu(x), its product with g, the product of g and u, and silu's gradient of that at x, in any order: one step.
bool join_backward(Pointwise& call) {
  for (const PointStep& back : call.steps) {
    if (back.op != PointOp::SiluBackward) continue;
    const auto silu =
        std::ranges::find_if(call.steps, [&](const PointStep& s) { return s.op == PointOp::Silu && s.a == back.b; });
    const auto inner = std::ranges::find_if(
        call.steps, [&](const PointStep& s) { return s.op == PointOp::Multiply && s.to == back.a; });
    if (silu == call.steps.end() || inner == call.steps.end() || readers_of(call, silu->to) != 1 ||
        readers_of(call, inner->to) != 1)
      continue;
    for (const PointStep& outer : call.steps) {
      const auto gradient = other_factor(outer, silu->to);
      const auto gated = gradient ? other_factor(*inner, *gradient) : std::nullopt;
      if (!gated) continue;
      // Four steps, none of which is read by another one but as said: where silu is multiplied by itself, they are fewer.
      const std::array<uint8_t, 4> gone = {silu->to, inner->to, outer.to, back.to};
      const auto is_gone = [&](uint8_t r) { return std::ranges::find(gone, r) != gone.end(); };
      if (outer.to == inner->to || is_gone(*gradient) || is_gone(*gated) || is_gone(back.b)) continue;
      const PointStep one = {.op = PointOp::SiluProductBackward,
                             .to = back.to,
                             .a = *gradient,
                             .b = back.b,
                             .c = *gated,
                             .to_too = outer.to};
      size_t last = 0;  // what they read is there by then, and nobody reads them before
      for (size_t i = 0; i < call.steps.size(); ++i)
        if (is_gone(call.steps[i].to)) last = i;
      const auto reads_early = [&](const PointStep& s) {
        const auto is_given = [&](uint8_t r) { return r == outer.to || r == back.to; };
        return !is_gone(s.to) &&
               (is_given(s.a) || is_given(s.b) || (s.op == PointOp::SiluProductBackward && is_given(s.c)));
      };
      if (std::any_of(call.steps.begin(), call.steps.begin() + static_cast<std::ptrdiff_t>(last), reads_early))
        continue;
      call.steps.insert(call.steps.begin() + static_cast<std::ptrdiff_t>(last) + 1, one);
      for (const uint8_t r : gone)
        call.steps.erase(
            std::ranges::find_if(call.steps, [&](const PointStep& s) { return s.to == r && s.op != one.op; }));
      return true;
    }
  }
  return false;
}

// silu(x) and its product with u: one step.
bool join_forward(Pointwise& call) {
  for (size_t i = 0; i < call.steps.size(); ++i) {
    const PointStep silu = call.steps[i];
    if (silu.op != PointOp::Silu || readers_of(call, silu.to) != 1) continue;
    for (PointStep& product : call.steps)
      if (const auto other = other_factor(product, silu.to)) {
        product = {.op = PointOp::SiluProduct, .to = product.to, .a = silu.a, .b = *other};
        call.steps.erase(call.steps.begin() + static_cast<std::ptrdiff_t>(i));
        return true;
      }
  }
  return false;
}

}  // namespace

void join_steps(Pointwise& call) {
  while (join_backward(call) || join_forward(call)) {
  }
}

void pointwise(const Pointwise& call, int64_t begin, int64_t end) {
  family().pointwise({call.inputs.data(), static_cast<int64_t>(call.inputs.size()), call.steps.data(),
                      static_cast<int64_t>(call.steps.size()), call.outputs.data(),
                      static_cast<int64_t>(call.outputs.size()), begin, end});
}

}  // namespace sfsdp::kernels

// SPDX-License-Identifier: BSD-3-Clause
// The block machine (pointwise.h): a step goes over a block before the next one does.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

// sigmoid(x) = 1 / (1 + e^-x) and 1 - sigmoid(x), the larger one to 2 units of its own last place, the smaller one to 3; without e^|x|,
// which overflows.
struct Sigmoid {
  V of, rest;
};
SFSDP_INLINE Sigmoid both_sigmoids(V x) {
  const V low = exp(x < V{} ? x : -x);  // of a nan a nan
  const V large = all(1.0f) / (all(1.0f) + low), small = low * large;
  return {x < V{} ? small : large, x < V{} ? large : small};
}
SFSDP_INLINE V sigmoid(V x) { return both_sigmoids(x).of; }

// x · sigmoid(2u) is x / 2 · (1 + tanh(u)), u = √(2/π) (x + 0.044715 x³).
SFSDP_INLINE V gelu_twice_u(V x) { return x * (all(1.5957691216057308f) + all(0.07135481627159268f) * x * x); }

// x and y are elements of a and b; blocks have room for whole vectors. No lambda: it would not be compiled for the family's processors.
#define SFSDP_FOR_BLOCK(element)                \
  for (int64_t i = 0; i < count; i += kLanes) { \
    const V x = load(a + i), y = load(b + i);   \
    static_cast<void>(y);                       \
    store(to + i, element);                     \
  }                                             \
  return

SFSDP_INLINE V silu_slope(V x) {
  const Sigmoid y = both_sigmoids(x);
  return y.of * (all(1.0f) + x * y.rest);
}
SFSDP_INLINE V gelu_slope(V x) {
  const Sigmoid y = both_sigmoids(gelu_twice_u(x));
  return y.of * (all(1.0f) + x * y.rest * (all(1.5957691216057308f) + all(3 * 0.07135481627159268f) * x * x));
}

SFSDP_INLINE void silu_product_grads(float* to_gate, float* to_up, const float* grad, const float* gate,
                                     const float* up, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const V g = load(grad + i), x = load(gate + i), u = load(up + i);
    const Sigmoid y = both_sigmoids(x);
    store(to_up + i, g * (x * y.of));
    store(to_gate + i, g * u * (y.of * (all(1.0f) + x * y.rest)));
  }
}

inline void run_step(const PointStep& step, float* const* block, int64_t count) {
  float* const to = block[step.to];
  const float *const a = block[step.a], *const b = block[step.b];
  const V s = all(step.scalar);
  switch (step.op) {
    case PointOp::Add:
      if (step.scalar == 1) {
        SFSDP_FOR_BLOCK(x + y);
      }
      SFSDP_FOR_BLOCK(x + s * y);
    case PointOp::Multiply: SFSDP_FOR_BLOCK(x * y);
    case PointOp::Scale: SFSDP_FOR_BLOCK(x * s);
    case PointOp::Sigmoid: SFSDP_FOR_BLOCK(sigmoid(x));
    case PointOp::Silu: SFSDP_FOR_BLOCK(x * sigmoid(x));
    case PointOp::SiluBackward: SFSDP_FOR_BLOCK(x * silu_slope(y));
    case PointOp::GeluTanh: SFSDP_FOR_BLOCK(x * sigmoid(gelu_twice_u(x)));
    case PointOp::GeluTanhBackward: SFSDP_FOR_BLOCK(x * gelu_slope(y));
    case PointOp::Relu: SFSDP_FOR_BLOCK(x < V{} ? V{} : x);
    case PointOp::ReluBackward: SFSDP_FOR_BLOCK(y <= s ? V{} : x);
    case PointOp::SiluProduct: SFSDP_FOR_BLOCK(x * sigmoid(x) * y);
    case PointOp::SiluProductBackward: return silu_product_grads(to, block[step.to_too], a, b, block[step.c], count);
  }
}
#undef SFSDP_FOR_BLOCK

template <class T>
SFSDP_INLINE void load_block(float* block, const T* data, int64_t period, int64_t begin, int64_t count) {
  if (period == 0) {
    for (int64_t e = 0; e < count; e += kLanes) store(block + e, part(data + begin, e, count));
    return;
  }
  for (int64_t e = 0; e < count;) {
    const int64_t at = (begin + e) % period, run = period - at < count - e ? period - at : count - e;
    for (int64_t i = 0; i < run; ++i) block[e + i] = as_float(data[at + i]);
    e += run;
  }
}

// A block of float32 is used where it lies in memory, but for an input that an output is written over: a step may read it later.
SFSDP_INLINE bool is_used_in_place(const PointwiseRun& run, const PointData& input, int64_t count) {
  if (input.dtype != ir::DType::f32 || input.period != 0 || count % kLanes != 0) return false;
  for (int64_t i = 0; i < run.outputs; ++i)
    if (run.output[i].data == input.data) return false;
  return true;
}

void pointwise_some(const PointwiseRun& run) {
  alignas(64) float blocks[kMostPointRegisters][kPointBlock];
  float* block[kMostPointRegisters];
  for (int64_t begin = run.begin; begin < run.end; begin += kPointBlock) {
    const int64_t count = run.end - begin < kPointBlock ? run.end - begin : kPointBlock;
    for (size_t r = 0; r < kMostPointRegisters; ++r) block[r] = blocks[r];
    for (int64_t i = 0; i < run.inputs; ++i) {
      const PointData& input = run.input[i];
      if (is_used_in_place(run, input, count))
        block[input.in] = static_cast<float*>(input.data) + begin;
      else if (input.dtype == ir::DType::f32)
        load_block(block[input.in], static_cast<const float*>(input.data), input.period, begin, count);
      else
        load_block(block[input.in], static_cast<const uint16_t*>(input.data), input.period, begin, count);
    }
    // An output that is an input's register has been made by no step: it is copied below.
    for (int64_t i = 0; i < run.outputs; ++i) {
      const PointData& output = run.output[i];
      if (output.dtype == ir::DType::f32 && count % kLanes == 0 && block[output.in] == blocks[output.in] &&
          output.in >= run.inputs)
        block[output.in] = static_cast<float*>(output.data) + begin;
    }
    for (int64_t i = 0; i < run.steps; ++i) run_step(run.step[i], block, count);
    for (int64_t i = 0; i < run.outputs; ++i) {
      const PointData& output = run.output[i];
      const float* from = block[output.in];
      if (output.dtype == ir::DType::f32) {
        float* to = static_cast<float*>(output.data) + begin;
        for (int64_t e = 0; e < count && from != to; e += kLanes) store_part(to, e, count, load(from + e));
      } else {
        uint16_t* to = static_cast<uint16_t*>(output.data) + begin;
        for (int64_t e = 0; e < count; e += kLanes) store_part(to, e, count, load(from + e));
      }
    }
  }
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND

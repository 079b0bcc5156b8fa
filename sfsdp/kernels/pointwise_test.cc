// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/pointwise.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "sfsdp/base/half.h"
#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels::pointwise_test {
namespace {

void run(const Family& family, const Pointwise& call, int64_t begin, int64_t end) {
  family.pointwise({call.inputs.data(), std::ssize(call.inputs), call.steps.data(), std::ssize(call.steps),
                    call.outputs.data(), std::ssize(call.outputs), begin, end});
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// 2u of GELU, whose tanh form x / 2 (1 + tanh(u)) is x sigmoid(2u); and its slope.
double gelu_2u(double x) { return 2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x); }
double gelu_slope(double x) { return 2 * std::sqrt(2 / std::acos(-1.0)) * (1 + 3 * 0.044715 * x * x); }

double exact(PointOp op, double a, double b, double scalar) {
  const double s = sigmoid(b), g = sigmoid(gelu_2u(b));
  switch (op) {
    case PointOp::Add: return a + scalar * b;
    case PointOp::Multiply: return a * b;
    case PointOp::Scale: return a * scalar;
    case PointOp::Sigmoid: return sigmoid(a);
    case PointOp::Silu: return a * sigmoid(a);
    case PointOp::SiluBackward: return a * s * (1 + b * (1 - s));
    case PointOp::GeluTanh: return a * sigmoid(gelu_2u(a));
    case PointOp::GeluTanhBackward: return a * g * (1 + b * (1 - g) * gelu_slope(b));
    case PointOp::Relu: return a < 0 ? 0 : a;
    case PointOp::ReluBackward: return b <= scalar ? 0 : a;
    case PointOp::SiluProduct: return a * sigmoid(a) * b;
    case PointOp::SiluProductBackward: break;  // of three; below
  }
  return 0;
}

// What may be lost, in the last place of float32: that of the largest number which is added up, and where e^x is taken of a rounded x,
// that of x. e^x is 0 below 2^-126, which a slope may multiply.
double allowed(PointOp op, double a, double b, double scalar) {
  const double s = sigmoid(b), g = sigmoid(gelu_2u(b)), expected = std::abs(exact(op, a, b, scalar));
  switch (op) {
    case PointOp::Add: return 2 * std::max(expected, std::abs(a));
    case PointOp::SiluBackward: return 6 * std::abs(a) * s * (1 + std::abs(b) * (1 - s));
    case PointOp::GeluTanh: return (4 + 2 * std::abs(gelu_2u(a))) * expected;
    case PointOp::GeluTanhBackward:
      return (4 + 2 * std::abs(gelu_2u(b))) * std::abs(a) * g * (1 + std::abs(b) * (1 - g) * gelu_slope(b));
    default: return 4 * expected;
  }
}

constexpr PointOp kOps[] = {PointOp::Add,  PointOp::Multiply,     PointOp::Scale,      PointOp::Sigmoid,
                            PointOp::Silu, PointOp::SiluBackward, PointOp::GeluTanh,   PointOp::GeluTanhBackward,
                            PointOp::Relu, PointOp::ReluBackward, PointOp::SiluProduct};

TEST_CASE("each op on elements is float64's to a few units of the last place, on all families, at odd sizes") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  for (const Family& family : families()) {
    CAPTURE(family.name);
    for (const PointOp op : kOps)
      for (const int64_t count : {1, 15, 17, 511, 512, 513, 5000}) {
        CAPTURE(static_cast<int>(op));
        std::vector<float> a(static_cast<size_t>(count)), b(a.size()), out(a.size() + 1, 99);
        for (float& x : a) x = normal(random);
        for (float& x : b) x = normal(random);
        const Pointwise call = {{{a.data(), ir::DType::f32, 0}, {b.data(), ir::DType::f32, 1}},
                                {{op, 2, 0, 1, 0.75F}},
                                {{out.data(), ir::DType::f32, 2}}};
        run(family, call, 0, count);
        CHECK(out.back() == 99);
        double worst = 0;
        for (size_t i = 0; i < a.size(); ++i) {
          const double error = std::abs(out[i] - exact(op, a[i], b[i], 0.75));
          worst = std::max(worst, error / (allowed(op, a[i], b[i], 0.75) * 0x1p-23 + 1e-34));
        }
        CHECK(worst <= 1);
      }
  }
}

TEST_CASE("ops on elements at the ends of their range: infinities, nan, what overflows") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x = {-200, -89, -88, 88, 89, 200, 1e30F, inf, nan, 0, -0.0F, 1e-30F};
  for (const Family& family : families()) {
    CAPTURE(family.name);
    std::vector<float> silu(x.size()), sig(x.size()), relu(x.size()), grad(x.size()), ones(x.size(), 1);
    const Pointwise call = {{{x.data(), ir::DType::f32, 0}, {ones.data(), ir::DType::f32, 1}},
                            {{PointOp::Silu, 2, 0, 0},
                             {PointOp::Sigmoid, 3, 0, 0},
                             {PointOp::Relu, 4, 0, 0},
                             {PointOp::SiluBackward, 5, 1, 0}},
                            {{silu.data(), ir::DType::f32, 2},
                             {sig.data(), ir::DType::f32, 3},
                             {relu.data(), ir::DType::f32, 4},
                             {grad.data(), ir::DType::f32, 5}}};
    run(family, call, 0, std::ssize(x));
    for (const size_t i : {0, 1, 2}) {
      CHECK(std::abs(silu[i]) < 1e-36);
      CHECK(sig[i] < 1e-37);
      CHECK(std::abs(grad[i]) < 1e-35);
    }
    for (const size_t i : {3, 4, 5, 6, 7}) {
      CHECK(silu[i] == x[i]);
      CHECK(sig[i] == 1);
      CHECK(relu[i] == x[i]);
    }
    CHECK(grad[5] == 1);
    for (const auto* out : {&silu, &sig, &relu, &grad}) CHECK(std::isnan((*out)[8]));
    CHECK(sig[9] == 0.5);
    CHECK(relu[10] == 0);
  }
}

// The chain of SwiGLU's backward, in bfloat16: rounded once, at the end; over an operand, and from block to block.
TEST_CASE("a chain of ops keeps float32 between them and may write over what it reads") {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  const int64_t count = 1300;
  std::vector<uint16_t> grad, gate, up;
  for (int64_t i = 0; i < count; ++i)
    for (auto* v : {&grad, &gate, &up}) v->push_back(to_bf16(normal(random)));
  for (const Family& family : families())
    for (const bool joined : {false, true}) {
      CAPTURE(family.name);
      CAPTURE(joined);
      std::vector<uint16_t> to_up(grad.size()), to_gate = grad;  // over the gradient
      Pointwise call = {{{to_gate.data(), ir::DType::bf16, 0},
                         {const_cast<uint16_t*>(gate.data()), ir::DType::bf16, 1},
                         {const_cast<uint16_t*>(up.data()), ir::DType::bf16, 2}},
                        {{PointOp::Silu, 3, 1, 1},
                         {PointOp::Multiply, 4, 0, 3},
                         {PointOp::Multiply, 5, 0, 2},
                         {PointOp::SiluBackward, 6, 5, 1}},
                        {{to_up.data(), ir::DType::bf16, 4}, {to_gate.data(), ir::DType::bf16, 6}}};
      if (joined) join_steps(call);
      CHECK(call.steps.size() == (joined ? 1 : 4));
      run(family, call, 0, 1024);
      run(family, call, 1024, count);
      for (size_t i = 0; i < grad.size(); ++i) {
        const double g = from_bf16(grad[i]), x = from_bf16(gate[i]), u = from_bf16(up[i]);
        const double wanted[] = {exact(PointOp::Multiply, g, x * sigmoid(x), 0),
                                 exact(PointOp::SiluBackward, g * u, x, 0)};
        CHECK(std::abs(from_bf16(to_up[i]) - wanted[0]) <= std::abs(wanted[0]) * 0x1.01p-8);
        CHECK(std::abs(from_bf16(to_gate[i]) - wanted[1]) <= std::abs(g * u) * 1e-6 + std::abs(wanted[1]) * 0x1.01p-8);
      }
    }
}

TEST_CASE("steps are joined where nobody else reads between them, and give the same numbers in float32") {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  const int64_t count = 1040;
  std::vector<float> grad, gate, up;
  for (int64_t i = 0; i < count; ++i)
    for (auto* v : {&grad, &gate, &up}) v->push_back(normal(random));
  const PointStep silu = {PointOp::Silu, 3, 1, 1}, outer = {PointOp::Multiply, 4, 3, 0},
                  inner = {PointOp::Multiply, 5, 2, 0}, back = {PointOp::SiluBackward, 6, 5, 1},
                  product = {PointOp::Multiply, 7, 3, 2}, reader = {PointOp::Add, 8, 3, 0},
                  late = {PointOp::Add, 8, 4, 0};
  const struct {
    std::vector<PointStep> steps;
    std::vector<uint8_t> outputs;
    size_t joined;  // steps
  } cases[] = {{{silu, outer, inner, back}, {4, 6}, 1},
               {{inner, back, silu, outer}, {6, 4}, 1},
               {{silu, outer, inner, back, late}, {4, 6, 8}, 2},
               {{silu, outer, late, inner, back}, {4, 6, 8}, 4},  // somebody reads in between: forward alone
               {{silu, outer, inner, back}, {3, 4, 6}, 4},        // silu is asked for
               {{silu, outer, inner, back, reader}, {4, 6, 8}, 5},
               {{silu, product}, {7}, 1},
               {{silu, product}, {3, 7}, 2},
               {{silu, reader}, {8}, 2}};
  for (const auto& one : cases) {
    CAPTURE(one.steps.size());
    std::vector<std::vector<float>> plain(one.outputs.size(), std::vector<float>(grad.size())), joined = plain;
    for (auto* to : {&plain, &joined}) {
      Pointwise call = {
          {{grad.data(), ir::DType::f32, 0}, {gate.data(), ir::DType::f32, 1}, {up.data(), ir::DType::f32, 2}},
          one.steps,
          {}};
      for (size_t i = 0; i < one.outputs.size(); ++i)
        call.outputs.push_back({(*to)[i].data(), ir::DType::f32, one.outputs[i]});
      if (to == &joined) {
        join_steps(call);
        CHECK(call.steps.size() == one.joined);
      }
      pointwise(call, 0, count);
    }
    for (size_t i = 0; i < plain.size(); ++i)
      for (size_t e = 0; e < grad.size(); ++e)
        CHECK(std::abs(plain[i][e] - joined[i][e]) <= 1e-6 * (1 + std::abs(plain[i][e])));
  }
}

TEST_CASE("an input with a period begins again after so many elements") {
  for (const Family& family : families())
    for (const int64_t period : {1, 3, 16, 512, 700}) {
      CAPTURE(period);
      std::vector<float> x(1500), out(x.size());
      std::vector<uint16_t> bias(static_cast<size_t>(period));
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
      for (size_t i = 0; i < bias.size(); ++i) bias[i] = to_bf16(static_cast<float>(i % 64) * 0.25F);
      const Pointwise call = {{{x.data(), ir::DType::f32, 0}, {bias.data(), ir::DType::bf16, 1, period}},
                              {{PointOp::Add, 2, 0, 1, -2}},
                              {{out.data(), ir::DType::f32, 2}}};
      run(family, call, 0, 512);
      run(family, call, 512, std::ssize(x));
      for (size_t i = 0; i < x.size(); ++i) CHECK(out[i] == x[i] - 2 * from_bf16(bias[i % bias.size()]));
    }
}

TEST_CASE("joined steps of random programs give the numbers of the program") {
  std::mt19937 random(8);
  const auto draw = [&](size_t n) { return static_cast<uint8_t>(random() % n); };
  std::uniform_real_distribution<float> number(-2, 2);
  constexpr int64_t kCount = 32;
  constexpr uint8_t kInputs = 3;
  std::vector<std::vector<float>> inputs(kInputs, std::vector<float>(kCount));
  for (auto& input : inputs)
    for (float& x : input) x = number(random);
  // What blocks hold from before is no number.
  std::vector<uint16_t> none(kCount, 0x7fc0);
  Pointwise poison;
  for (uint8_t r = 0; r < kMostPointRegisters; ++r) poison.inputs.push_back({none.data(), ir::DType::bf16, r});
  constexpr PointOp kDrawn[] = {PointOp::Silu, PointOp::Multiply, PointOp::Multiply, PointOp::SiluBackward,
                                PointOp::Add};
  size_t shorter = 0;
  for (int round = 0; round < 20000; ++round) {
    Pointwise call;
    for (uint8_t r = 0; r < kInputs; ++r) call.inputs.push_back({inputs[r].data(), ir::DType::f32, r});
    const uint8_t steps = 2 + draw(6);
    for (uint8_t k = 0; k < steps; ++k) {
      const auto made = static_cast<size_t>(kInputs + k);
      call.steps.push_back({kDrawn[draw(5)], static_cast<uint8_t>(made), draw(made), draw(made), 0.5F});
    }
    std::vector<std::vector<float>> plain, joined;
    for (uint8_t r = kInputs; r < kInputs + steps; ++r)
      if (r == kInputs + steps - 1 || draw(4) == 0) call.outputs.push_back({nullptr, ir::DType::f32, r});
    plain.resize(call.outputs.size(), std::vector<float>(kCount));
    joined = plain;
    for (size_t i = 0; i < plain.size(); ++i) call.outputs[i].data = plain[i].data();
    pointwise(call, 0, kCount);
    for (size_t i = 0; i < plain.size(); ++i) call.outputs[i].data = joined[i].data();
    const size_t before = call.steps.size();
    join_steps(call);
    shorter += call.steps.size() < before ? 1 : 0;
    pointwise(poison, 0, kCount);
    pointwise(call, 0, kCount);
    for (size_t i = 0; i < plain.size(); ++i)
      for (size_t e = 0; e < kCount; ++e) {
        const float size = 1 + std::abs(plain[i][e]);
        if (!(std::abs(plain[i][e] - joined[i][e]) <= 2e-5F * size * size))
          FAIL_CHECK("round " << round << ": " << joined[i][e] << " for " << plain[i][e]);
      }
  }
  CHECK(shorter > 1000);
}

}  // namespace
}  // namespace sfsdp::kernels::pointwise_test

// SPDX-License-Identifier: BSD-3-Clause
// Ops on elements, one after the other, over blocks that stay in the first cache: what one makes the next one finds there, in float32,
// whatever is stored. Memory is read and written once for all of them (docs/decisions/0010-block-machine.md). Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sfsdp/ir/type.h"

namespace sfsdp::kernels {

enum class PointOp : uint8_t {
  Add,           // a + scalar · b
  Multiply,      // a · b
  Scale,         // a · scalar
  Sigmoid,       // of a
  Silu,          // a · sigmoid(a)
  SiluBackward,  // a is the gradient, b what silu was given
  GeluTanh,      // as LibTorch's gelu with approximate = tanh
  GeluTanhBackward,
  Relu,
  ReluBackward,         // a where b > scalar, else 0
  SiluProduct,          // silu(a) · b
  SiluProductBackward,  // a is the gradient of silu(b) · c: to is b's, to_too c's
};

// Registers are blocks: first those of the inputs, then what steps make, each written once. A step of one operand has it as b too.
struct PointStep {
  PointOp op = PointOp::Add;
  uint8_t to = 0, a = 0, b = 0;
  float scalar = 1;
  uint8_t c = 0, to_too = 0;
};

// Element i is data[i], or of an input with a period, such as a bias, data[i % period].
struct PointData {
  void* data = nullptr;
  ir::DType dtype = ir::DType::f32;  // f32 or bf16
  uint8_t in = 0;                    // register
  int64_t period = 0;                // elements; 0: none
};

inline constexpr int64_t kPointBlock = 512;        // elements
inline constexpr size_t kMostPointRegisters = 24;  // 48 KiB

struct Pointwise {
  std::vector<PointData> inputs;
  std::vector<PointStep> steps;
  std::vector<PointData> outputs;  // an output may lie just where an input of its dtype does, else over none
};

// The same numbers by fewer steps, where a gate of SiLU and its gradient are computed at once, with one e^x.
void join_steps(Pointwise& call);

// Elements begin to end - 1; begin is a multiple of kPointBlock.
void pointwise(const Pointwise& call, int64_t begin, int64_t end);

}  // namespace sfsdp::kernels

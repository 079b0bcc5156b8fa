// SPDX-License-Identifier: BSD-3-Clause
// Calls of LibTorch's ops that have rows in ir/atenset.def, drawn at random, to be traced.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/capture/tracer.h"

namespace sfsdp::testing {

// Random choices, and meta tensors that are inputs of the trace.
class Caller {
 public:
  Caller(uint64_t seed, capture::Tracer& tracer) : engine_(seed), tracer_(tracer) {}

  int64_t in(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return in(1, 100) <= percent; }
  int64_t size() { return chance(5) ? 0 : chance(20) ? 1 : in(2, 6); }
  std::vector<int64_t> sizes(int64_t fewest = 0, int64_t most = 4) {
    std::vector<int64_t> sizes(static_cast<size_t>(in(fewest, most)));
    for (int64_t& s : sizes) s = size();
    return sizes;
  }
  at::ScalarType floating() { return std::array{at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}[pick(4)]; }
  at::ScalarType any() {
    return std::array{at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong,
                      at::kInt,   at::kShort,    at::kChar, at::kByte,   at::kBool}[pick(10)];
  }
  int64_t dim(const std::vector<int64_t>& sizes) {
    const auto rank = std::max<int64_t>(static_cast<int64_t>(sizes.size()), 1);
    return in(-rank, rank - 1);
  }
  at::Scalar number() { return chance(50) ? at::Scalar(in(-3, 3)) : at::Scalar(0.5); }

  at::Tensor tensor(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
    at::Tensor t = at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta));
    const std::string name = "x" + std::to_string(inputs_++);
    ir::Op* op = tracer_.graph.add("input", {}, {{name, capture::type_of(t)}});
    op->section = ir::Section::Init;
    op->attrs["name"] = name;
    tracer_.declare(t, op->result());
    return t;
  }
  at::Tensor floats(const std::vector<int64_t>& sizes) { return tensor(sizes, floating()); }
  // Its sizes broadcast to these.
  at::Tensor smaller(std::vector<int64_t> sizes, at::ScalarType dtype) {
    for (int64_t& s : sizes)
      if (chance(20)) s = 1;
    if (chance(20)) sizes.clear();
    if (!sizes.empty() && chance(20)) sizes.erase(sizes.begin());
    return tensor(sizes, dtype);
  }

 private:
  size_t pick(int64_t count) { return static_cast<size_t>(in(0, count - 1)); }
  std::mt19937_64 engine_;
  capture::Tracer& tracer_;
  int inputs_ = 0;
};

using Call = std::function<void(Caller&)>;

// At least one for each row that has a rule.
std::vector<Call> aten_calls();

}  // namespace sfsdp::testing

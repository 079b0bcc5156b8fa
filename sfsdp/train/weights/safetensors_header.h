// SPDX-License-Identifier: BSD-3-Clause
// What a safetensors file begins with: the header's length, its JSON, blanks.
// Source: safetensors README.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sfsdp/ir/type.h"

namespace sfsdp::train {

class SafetensorsHeader {
 public:
  // A tensor whose elements follow those of the one before.
  //   bytes: of all its elements
  void add(std::string_view name, ir::DType dtype, std::span<const int64_t> shape, uint64_t bytes);
  // The first bytes of the file, as many as a multiple of `alignment`: the first tensor begins after them.
  std::string bytes(int64_t alignment = 8) const;

 private:
  std::string entries_;
  uint64_t end_ = 0;  // of the tensors so far
};

}  // namespace sfsdp::train

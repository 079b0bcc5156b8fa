// SPDX-License-Identifier: BSD-3-Clause
// All bytes of a tensor in a safetensors file, for tests that look at single elements.
#pragma once

#include <cstddef>
#include <vector>

#include "sfsdp/train/weights/safetensors.h"

namespace sfsdp::testing {

inline std::vector<std::byte> bytes_of(const train::TensorView& view) {
  std::vector<std::byte> bytes(static_cast<size_t>(view.bytes));
  view.read(0, bytes);
  return bytes;
}

}  // namespace sfsdp::testing

// SPDX-License-Identifier: BSD-3-Clause
// The example inputs of an archive, which AOTInductor asks for: what torch.save writes of ((tensor, …), {}).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/ir/type.h"

namespace sfsdp::exported {

struct SampleInput {
  ir::DType dtype = ir::DType::f32;
  std::vector<int64_t> sizes;
};

// The file's bytes; all elements are 0. torch.load(weights_only=True) reads it.
// Source: torch/serialization.py, torch/_utils.py (_rebuild_tensor_v2), Python's pickletools for the opcodes of protocol 2.
std::string sample_inputs_file(std::span<const SampleInput> inputs);

}  // namespace sfsdp::exported

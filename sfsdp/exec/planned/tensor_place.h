// SPDX-License-Identifier: BSD-3-Clause
// Tensors as places in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "sfsdp/device/device.h"
#include "sfsdp/exec/planned/rank_memory.h"
#include "sfsdp/ir/type.h"

namespace sfsdp::exec {

// A tensor of the type, its first element at `begin`; it keeps `memory`.
at::Tensor tensor_at(std::byte* begin, const ir::Type& type, std::shared_ptr<RankMemory> memory);

// Whether their first elements are one.
inline bool same_place(const at::Tensor& a, const at::Tensor& b) { return a.const_data_ptr() == b.const_data_ptr(); }

// Whether two tensors have bytes in common, from the first to the last of each.
bool meet(const at::Tensor& a, const at::Tensor& b);

// Its elements' bytes, side by side where they lie so.
void add_bytes(const at::Tensor& tensor, std::vector<device::Bytes>& to);

}  // namespace sfsdp::exec

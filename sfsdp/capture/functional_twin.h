// SPDX-License-Identifier: BSD-3-Clause
// The op that returns what an in-place op writes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace sfsdp::capture {

// aten::pow.Tensor_Scalar of aten::pow_.Scalar: takes the same arguments, writes none of them, and returns what `op`
// returns followed by what it writes. nullopt: this LibTorch has none.
std::optional<c10::OperatorHandle> functional_twin(const c10::OperatorHandle& op);

}  // namespace sfsdp::capture

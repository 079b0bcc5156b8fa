// SPDX-License-Identifier: BSD-3-Clause
// Python's operators on sizes of the batch, as an exported graph with dynamic shapes calls them: "_operator.floordiv".
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

namespace sfsdp::models {

bool is_scalar_op(const std::string& target);
// As Python computes it: // and % round down, / gives a double. throws: UserError where a number is divided by 0, or is no
// whole number that fits 64 bits
c10::IValue scalar_op(const std::string& target, const std::vector<c10::IValue>& arguments);

}  // namespace sfsdp::models

// SPDX-License-Identifier: BSD-3-Clause
// Random programs of all rows of the op set that compute, and of ops without a row: for what reads access maps. The interpreter
// has no kernels for most of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::testing {

// What any_ops_program draws from: lines of text, of which %A, %B and %C are values f32[4, 4], and %$ is the result.
const std::vector<std::string>& op_templates();

// Made of some templates. Verifies. The same for the same seed on every machine.
ir::Graph any_ops_program(uint64_t seed, const std::vector<std::string>& from = op_templates());

// Made of these templates, one after the other, each of which reads what the one before it makes.
ir::Graph program_of(const std::vector<std::string>& templates);

}  // namespace sfsdp::testing

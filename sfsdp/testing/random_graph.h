// SPDX-License-Identifier: BSD-3-Clause
// Random graphs, the same for the same seed on every machine.
#pragma once

#include <cstdint>
#include <string>

#include "sfsdp/ir/graph.h"

namespace sfsdp::testing {

// Anything the text form can hold, sense or not: for printer and parser.
ir::Graph random_graph(uint64_t seed);

// Verifies and runs in the interpreter; full of duplicates and of what nobody reads: for passes.
ir::Graph random_program(uint64_t seed);

// Graphs alike but for where they lie in memory; else the first difference, in words.
std::string find_difference(const ir::Graph& a, const ir::Graph& b);

}  // namespace sfsdp::testing

// SPDX-License-Identifier: BSD-3-Clause
// An exported program for people who want to train it.
#pragma once

#include <cstdint>
#include <string>

#include "sfsdp/exported/program.h"

namespace sfsdp::exported {

// Lines on inputs with dtypes, sizes and ranges, outputs and which could be the loss, parameters and buffers by path with like
// ones of several blocks on one line, and how many nodes of which ops.
std::string describe(const Program& program);

// A hash of the function that the graph is: its nodes with all arguments, its inputs and outputs. Names of values, Python lines and weights
// are none of it, so that a model exported again elsewhere has the same.
uint64_t graph_hash(const Program& program);

}  // namespace sfsdp::exported

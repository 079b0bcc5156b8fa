// SPDX-License-Identifier: BSD-3-Clause
// The graph as text (docs/style.md section 3): one op a line, the same text for the same graph.
#pragma once

#include <string>

#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

// parse(print(graph)) is isomorphic to graph; print(parse(text)) == text for text that print wrote.
std::string print(const Graph& graph);

// One op's line, without indentation and newline.
std::string print(const Op& op);

}  // namespace sfsdp::ir

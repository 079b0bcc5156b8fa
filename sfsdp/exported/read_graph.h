// SPDX-License-Identifier: BSD-3-Clause
// The graph of an exported program out of its JSON. For read_program.cc and its tests.
#pragma once

#include <string>
#include <unordered_map>

#include "sfsdp/exported/json_cursor.h"
#include "sfsdp/exported/program.h"

namespace sfsdp::exported {

struct ReadGraph {
  Graph graph;
  std::unordered_map<std::string, Slot> slots;  // by the value's name
};

// throws: UserError naming the place: a value that is read before it is made, made twice or has no type; an argument of a
// kind that is not known; graphs in graphs, deeper than 8
ReadGraph read_graph(const JsonCursor& at, int depth = 0);

// A name of the graph, an optional tensor or a list of them, resolved.
Argument read_argument(const JsonCursor& at, const ReadGraph& in, int depth = 0);

TensorMeta read_tensor_meta(const JsonCursor& at);

// "L__self__,,Net;L__self___layers_0,layers.0@1,Block" -> "layers.0": the innermost module, which call of it left out.
std::string module_path_of(const std::string& stack);
// The innermost frame outside of LibTorch's own Python: "net.py:12: return self.up(x)".
std::string python_line_of(const std::string& stack_trace);

}  // namespace sfsdp::exported

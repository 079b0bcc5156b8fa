// SPDX-License-Identifier: BSD-3-Clause
// Whether a graph makes sense. Runs after the parser, and before and after every pass; reports all it finds.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

// Checks, per op: a known opcode, arity, the row's rule, types over axes of the mesh, roots in section init;
// over the graph: names, definition before use, start - wait pairs, donated buffers, sections, bwd_of,
// outputs, carries.
// `locations`: from parse(), so that diagnostics name file and line.
std::vector<Diagnostic> verify(const Graph& graph, const SourceMap* locations = nullptr);

// The kinds of its attributes, and the rule of the op's row: types and attributes. Its operands need not be values of `graph`, whose mesh counts.
std::vector<Diagnostic> check_rule_of(const Graph& graph, const Op& op);

// throws: UserError with all diagnostics
void verify_or_throw(const Graph& graph, const SourceMap* locations = nullptr);

// Whether ranks that run these two programs would meet in every collective: each communicator (an axis list) must see
// the same calls in the same order, waits aside. "" or the first call that differs, in words.
std::string compare_collectives(const Graph& mine, const Graph& other);

}  // namespace sfsdp::ir

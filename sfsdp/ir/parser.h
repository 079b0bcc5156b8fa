// SPDX-License-Identifier: BSD-3-Clause
// IR text to graph. Says everything that is wrong at once; whether the graph makes sense is the verifier's question.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

struct ParseResult {
  Graph graph;  // what could be read
  std::vector<Diagnostic> diagnostics;
  SourceMap locations;
  bool ok() const { return diagnostics.empty(); }
};

ParseResult parse(std::string_view text, std::string file_name = "");

// throws: UserError with all diagnostics
Graph parse_or_throw(std::string_view text, std::string file_name = "");

}  // namespace sfsdp::ir

// SPDX-License-Identifier: BSD-3-Clause
// One complaint of the parser or the verifier: what, where, expected and got, what to do.
#pragma once

#include <iosfwd>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sfsdp::ir {

class Op;

struct Location {
  std::string file;  // "" when the graph came from no file
  int line = 0;      // 1-based; 0 is unknown
  int column = 0;
};

// Where each op stood in the text it was parsed from.
using SourceMap = std::map<const Op*, Location>;

struct Diagnostic {
  Location where;
  std::string message;  // "aten.mm reads %w1.ag before its wait"
  std::string detail;   // "expected a tensor, got async bf16[256, 256]; insert %w1.full = wait %w1.ag"
};

std::ostream& operator<<(std::ostream& out, const Diagnostic& diagnostic);

// All of them, one below the other, as an error shows them.
std::string to_string(std::span<const Diagnostic> diagnostics);

}  // namespace sfsdp::ir

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/diagnostic.h"

#include <ostream>
#include <sstream>

namespace sfsdp::ir {

std::ostream& operator<<(std::ostream& out, const Diagnostic& diagnostic) {
  if (diagnostic.where.line > 0) {
    out << (diagnostic.where.file.empty() ? "<text>" : diagnostic.where.file) << ':' << diagnostic.where.line << ':';
    if (diagnostic.where.column > 0) out << diagnostic.where.column << ':';
    out << ' ';
  }
  out << diagnostic.message;
  if (!diagnostic.detail.empty()) out << "\n  " << diagnostic.detail;
  return out;
}

std::string to_string(std::span<const Diagnostic> diagnostics) {
  std::ostringstream out;
  const char* separator = "";
  for (const Diagnostic& diagnostic : diagnostics) {
    out << separator << diagnostic;
    separator = "\n";
  }
  return out.str();
}

}  // namespace sfsdp::ir

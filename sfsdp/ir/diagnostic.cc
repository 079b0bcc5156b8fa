// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/diagnostic.h"

#include <ostream>

#include "sfsdp/base/check.h"

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
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += concat(text.empty() ? "" : "\n", diagnostic);
  return text;
}

}  // namespace sfsdp::ir

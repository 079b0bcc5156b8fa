// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/diagnostic.h"

#include <algorithm>
#include <numeric>
#include <ostream>
#include <sstream>

namespace sfsdp::ir {
namespace {

// Letters to insert, delete, replace, or swap with their neighbour (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  std::iota(d[0].begin(), d[0].end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    d[i][0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Diagnostic& diagnostic) {
  out << "error";
  if (diagnostic.where.line > 0) {
    out << " at " << (diagnostic.where.file.empty() ? "<text>" : diagnostic.where.file) << ':' << diagnostic.where.line;
    if (diagnostic.where.column > 0) out << ':' << diagnostic.where.column;
  }
  out << ": " << diagnostic.message;
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

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  // A third of the letters may be wrong: beyond that a suggestion misleads.
  size_t best = std::max<size_t>(1, name.size() / 3) + 1;
  std::string nearest;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance >= best) continue;
    best = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace sfsdp::ir

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/glob.h"

#include <cstddef>

namespace sfsdp {

// Greedy: a later star takes back what the one before it took, so the last star alone has to be remembered.
bool matches(std::string_view pattern, std::string_view path) {
  size_t p = 0, i = 0, star = std::string_view::npos, taken = 0;
  while (i < path.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || (pattern[p] != '*' && pattern[p] == path[i]))) {
      ++p, ++i;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = i;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      i = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace sfsdp

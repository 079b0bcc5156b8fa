// SPDX-License-Identifier: BSD-3-Clause
// What `diff -u` says of two texts: the fewest lines that were removed and added.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sfsdp {

// Lines that a and b share, as (line of a, line of b) from 0, both rising: a longest common subsequence.
//   cost: O((n + m) log n) where lines are mostly different from each other, as those of a printed graph are; each line
//         that is k times in a and l times in b adds k·l to n
//   source: Hunt and Szymanski, A fast algorithm for computing longest common subsequences, CACM 20 (5), 1977
std::vector<std::pair<size_t, size_t>> common_lines(const std::vector<std::string_view>& a,
                                                    const std::vector<std::string_view>& b);

// "--- before", "+++ after", then hunks "@@ -1,4 +1,3 @@" with `context` equal lines around; "" if the texts are equal.
// A last line counts as one with or without its line end.
struct DiffNames {
  std::string before = "before";
  std::string after = "after";
};
std::string unified_diff(std::string_view before, std::string_view after, const DiffNames& names = {},
                         size_t context = 3);

}  // namespace sfsdp

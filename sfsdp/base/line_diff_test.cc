// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/line_diff.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::line_diff_test {
namespace {

TEST_CASE("unified_diff is what diff -u prints") {
  // printf '1\n…9\n' and the same with 2 changed, 5 removed and "new" after 8, through GNU diff -U1.
  CHECK(unified_diff("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\nzwei\n3\n4\n6\n7\n8\nnew\n9\n", {"a", "b"}, 1) ==
        "--- a\n+++ b\n"
        "@@ -1,6 +1,5 @@\n 1\n-2\n+zwei\n 3\n 4\n-5\n 6\n"
        "@@ -8,2 +7,3 @@\n 8\n+new\n 9\n");
  CHECK(unified_diff("", "x\ny\n") == "--- before\n+++ after\n@@ -0,0 +1,2 @@\n+x\n+y\n");
  CHECK(unified_diff("x\n", "") == "--- before\n+++ after\n@@ -1 +0,0 @@\n-x\n");
  CHECK(unified_diff("a\nb\n", "a\nb\n") == "");
  CHECK(unified_diff("a\nb", "a\nb\n") == "");
  CHECK(unified_diff("", "") == "");
}

// The length of the longest common subsequence by the textbook's table.
size_t longest(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::vector<size_t>> table(a.size() + 1, std::vector<size_t>(b.size() + 1, 0));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b.size(); ++j)
      table[i + 1][j + 1] = a[i] == b[j] ? table[i][j] + 1 : std::max(table[i][j + 1], table[i + 1][j]);
  return table[a.size()][b.size()];
}

TEST_CASE("of random texts no fewer lines could be called changed, and the diff leads from one to the other") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    uint64_t draws = 0;
    const auto draw = [&](uint32_t below) { return philox4x32(seed, 0, draws++)[0] % below; };
    const auto text = [&] {
      std::vector<std::string> lines(draw(30));
      for (std::string& line : lines) line = concat("line ", draw(8));
      return lines;
    };
    const auto a = text(), b = text();
    const auto pairs = common_lines({a.begin(), a.end()}, {b.begin(), b.end()});
    CHECK(pairs.size() == longest(a, b));
    for (size_t k = 0; k < pairs.size(); ++k) {
      CHECK(a[pairs[k].first] == b[pairs[k].second]);
      if (k > 0) CHECK((pairs[k - 1].first < pairs[k].first && pairs[k - 1].second < pairs[k].second));
    }
    std::vector<std::string> from, to;
    for (const std::string& line : split(unified_diff(join(a, "\n"), join(b, "\n"), {}, 1000), '\n')) {
      if (line.empty() || line.starts_with("---") || line.starts_with("+++") || line[0] == '@') continue;
      if (line[0] != '+') from.push_back(line.substr(1));
      if (line[0] != '-') to.push_back(line.substr(1));
    }
    if (a != b) {
      CHECK(from == a);
      CHECK(to == b);
    }
  }
}

TEST_CASE("moved lines cost no more than they must") {
  std::string before, after;
  for (int i = 0; i < 20000; ++i) before += concat("op ", i, '\n');
  for (int i = 0; i < 20000; ++i)
    if (i != 7) after += concat("op ", i, i == 15000 ? "\nop 7\n" : "\n");
  const std::string diff = unified_diff(before, after, {}, 0);
  CHECK(diff == "--- before\n+++ after\n@@ -8 +7,0 @@\n-op 7\n@@ -15001,0 +15001 @@\n+op 7\n");
}

}  // namespace
}  // namespace sfsdp::line_diff_test

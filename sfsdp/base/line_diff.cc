// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/line_diff.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <unordered_map>

#include "sfsdp/base/check.h"

namespace sfsdp {
namespace {

using Lines = std::vector<std::string_view>;
using Pair = std::pair<size_t, size_t>;

Lines lines_of(std::string_view text) {
  Lines lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return lines;
}

// The common subsequence of the parts [first, a.size() - last) and [first, b.size() - last).
std::vector<Pair> common_between(const Lines& a, const Lines& b, size_t first, size_t last) {
  std::unordered_map<std::string_view, std::vector<size_t>> places;  // in b, falling
  for (size_t j = b.size() - last; j-- > first;) places[b[j]].push_back(j);
  struct Link {
    Pair pair;
    std::optional<size_t> before;  // index in links
  };
  std::vector<Link> links;
  std::vector<size_t> ends;  // ends[k]: the link that ends the chain of k + 1 pairs that ends earliest in b
  for (size_t i = first; i < a.size() - last; ++i) {
    const auto found = places.find(a[i]);
    if (found == places.end()) continue;
    // Falling, so that a line of a is matched once per chain.
    for (const size_t j : found->second) {
      const auto at = std::ranges::lower_bound(ends, j, {}, [&](size_t link) { return links[link].pair.second; });
      const std::optional<size_t> before = at == ends.begin() ? std::nullopt : std::optional(*std::prev(at));
      if (at == ends.end())
        ends.push_back(links.size());
      else
        *at = links.size();
      links.push_back({{i, j}, before});
    }
  }
  std::vector<Pair> pairs;
  for (std::optional<size_t> at = ends.empty() ? std::nullopt : std::optional(ends.back()); at; at = links[*at].before)
    pairs.push_back(links[*at].pair);
  std::ranges::reverse(pairs);
  return pairs;
}

// Removed lines [a, a_end) in the place of added lines [b, b_end).
struct Change {
  size_t a, a_end, b, b_end;
};

std::vector<Change> changes_between(const std::vector<Pair>& common, size_t a_size, size_t b_size) {
  std::vector<Change> changes;
  size_t a = 0, b = 0;
  const auto up_to = [&](size_t a_end, size_t b_end) {
    if (a < a_end || b < b_end) changes.push_back({a, a_end, b, b_end});
    a = a_end + 1;
    b = b_end + 1;
  };
  for (const auto& [i, j] : common) up_to(i, j);
  up_to(a_size, b_size);
  return changes;
}

// diff's spelling: an empty range is named by the line before it.
std::string range_text(size_t first, size_t count) {
  if (count == 1) return concat(first + 1);
  return concat(count == 0 ? first : first + 1, ',', count);
}

}  // namespace

std::vector<Pair> common_lines(const Lines& a, const Lines& b) {
  const size_t shorter = std::min(a.size(), b.size());
  size_t first = 0, last = 0;
  while (first < shorter && a[first] == b[first]) ++first;
  while (last < shorter - first && a[a.size() - 1 - last] == b[b.size() - 1 - last]) ++last;
  std::vector<Pair> pairs;
  for (size_t i = 0; i < first; ++i) pairs.emplace_back(i, i);
  for (const Pair& pair : common_between(a, b, first, last)) pairs.push_back(pair);
  for (size_t i = last; i > 0; --i) pairs.emplace_back(a.size() - i, b.size() - i);
  return pairs;
}

std::string unified_diff(std::string_view before, std::string_view after, const DiffNames& names, size_t context) {
  const Lines a = lines_of(before), b = lines_of(after);
  const std::vector<Change> changes = changes_between(common_lines(a, b), a.size(), b.size());
  if (changes.empty()) return "";
  std::string text = concat("--- ", names.before, "\n+++ ", names.after, '\n');
  const auto put = [&](char mark, std::string_view line) { text += concat(mark, line, '\n'); };
  for (size_t c = 0; c < changes.size();) {
    size_t end = c + 1;  // changes whose contexts touch share a hunk
    while (end < changes.size() && changes[end].a - changes[end - 1].a_end <= 2 * context) ++end;
    const size_t lead = std::min(context, changes[c].a);
    const size_t tail = std::min(context, a.size() - changes[end - 1].a_end);
    const size_t a_first = changes[c].a - lead, b_first = changes[c].b - lead;
    text += concat("@@ -", range_text(a_first, changes[end - 1].a_end + tail - a_first), " +",
                   range_text(b_first, changes[end - 1].b_end + tail - b_first), " @@\n");
    size_t at = a_first;
    for (; c < end; ++c) {
      for (; at < changes[c].a; ++at) put(' ', a[at]);
      for (; at < changes[c].a_end; ++at) put('-', a[at]);
      for (size_t j = changes[c].b; j < changes[c].b_end; ++j) put('+', b[j]);
    }
    for (const size_t stop = at + tail; at < stop; ++at) put(' ', a[at]);
  }
  return text;
}

}  // namespace sfsdp

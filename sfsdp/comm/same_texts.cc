// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/same_texts.h"

#include <algorithm>
#include <numeric>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::comm {
namespace {

// Every rank's text, in rank order.
std::vector<std::string> gather_texts(Communicator& group, const std::string& mine, const std::string& what) {
  const auto ranks = static_cast<size_t>(group.size());
  const uint64_t length = mine.size();
  std::vector<uint64_t> lengths(ranks);
  group.all_gather(std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths)), {what, ""});
  const size_t longest = std::ranges::max(lengths);
  std::string padded = mine, all(ranks * longest, ' ');
  padded.resize(longest, ' ');
  group.all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)), {what, ""});
  std::vector<std::string> texts;
  for (size_t r = 0; r < ranks; ++r) texts.push_back(all.substr(r * longest, lengths[r]));
  return texts;
}

// "line 12:", then both lines.
std::string first_difference(const std::string& a, const std::string& b) {
  const auto left = split(a, '\n'), right = split(b, '\n');
  size_t i = 0;
  while (i < left.size() && i < right.size() && left[i] == right[i]) ++i;
  const auto line = [&](const std::vector<std::string>& lines) { return i < lines.size() ? lines[i] : "(nothing)"; };
  return concat("line ", i + 1, ":\n    ", line(left), "\n    ", line(right));
}

}  // namespace

void expect_same_texts(CommWorld& world, std::span<const RankText> texts) {
  std::vector<int> ranks(static_cast<size_t>(world.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = world.group("world", ranks);
  std::vector<uint64_t> mine;
  for (const RankText& text : texts) mine.push_back(hash_path(text.text));
  std::vector<uint64_t> all(ranks.size() * mine.size());
  group->all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), {"program hash", ""});
  for (size_t k = 0; k < texts.size(); ++k)
    for (size_t r = 1; r < ranks.size(); ++r) {
      if (all[r * mine.size() + k] == all[k]) continue;
      const auto of_ranks = gather_texts(*group, texts[k].text, texts[k].what);
      std::string message = concat("rank 0 and rank ", r, " have different ", texts[k].what, "; first difference, ",
                                   first_difference(of_ranks[0], of_ranks[r]));
      const std::string meaning = texts[k].explain ? texts[k].explain(of_ranks[0], of_ranks[r]) : "";
      if (!meaning.empty()) message += "\n  " + meaning;
      throw UserError(message + "\n  " + texts[k].advice);
    }
}

}  // namespace sfsdp::comm

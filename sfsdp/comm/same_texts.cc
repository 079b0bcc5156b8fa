// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/same_texts.h"

#include <bit>
#include <map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::comm {
namespace {

constexpr const char* kGroup = "world";

std::vector<uint64_t> gather(Communicator& all, const std::vector<uint64_t>& mine, const char* what) {
  std::vector<uint64_t> numbers(static_cast<size_t>(all.size()) * mine.size());
  all.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(numbers)), {what, ""});
  return numbers;
}

// `text` of group rank `root`, on all ranks of the group.
std::string broadcast(Communicator& group, std::string text, int root) {
  uint64_t length = text.size();
  group.broadcast(std::as_writable_bytes(std::span(&length, 1)), root, {"length of a text", ""});
  text.resize(length);
  group.broadcast(std::as_writable_bytes(std::span(text)), root, {"text", ""});
  return text;
}

// "line 12:", then both lines.
std::string first_difference(const std::string& a, const std::string& b) {
  const auto left = split(a, '\n'), right = split(b, '\n');
  size_t i = 0;
  while (i < left.size() && i < right.size() && left[i] == right[i]) ++i;
  const auto line = [&](const std::vector<std::string>& lines) { return i < lines.size() ? lines[i] : "(nothing)"; };
  return concat("line ", i + 1, ":\n    ", line(left), "\n    ", line(right));
}

// What rank `other` says of rank 0's text and its own.
std::string describe_difference(const RankText& mine, const std::string& of_rank_0, int other) {
  std::string message = concat("rank 0 and rank ", other, " have different ", mine.what, "; first difference, ",
                               first_difference(of_rank_0, mine.text));
  const std::string meaning = mine.explain ? mine.explain(of_rank_0, mine.text) : "";
  if (!meaning.empty()) message += "\n  " + meaning;
  return message + "\n  " + mine.advice;
}

// A whole text goes from rank 0 to `other` alone: a program of a large model has megabytes, and there are many ranks.
[[noreturn]] void throw_difference(CommWorld& world, Communicator& all, const RankText& mine, int other) {
  const bool compares = world.rank() == 0 || world.rank() == other;
  const auto pair = world.group(concat("rank 0 and rank ", other),
                                compares ? std::vector<int>{0, other} : std::vector<int>{world.rank()});
  std::string message;
  if (compares) {
    const std::string of_rank_0 = broadcast(*pair, mine.text, 0);
    if (world.rank() == other) message = describe_difference(mine, of_rank_0, other);
  }
  throw UserError(broadcast(all, std::move(message), other));
}

}  // namespace

std::vector<uint64_t> gather_numbers(CommWorld& world, const std::vector<uint64_t>& mine, const char* what) {
  return gather(*world.all_ranks(kGroup), mine, what);
}

void expect_same_texts(CommWorld& world, std::span<const RankText> texts) {
  const auto group = world.all_ranks(kGroup);
  std::vector<uint64_t> mine;
  for (const RankText& text : texts) mine.push_back(hash_path(text.text));
  const std::vector<uint64_t> all = gather(*group, mine, "program hash");
  for (size_t k = 0; k < texts.size(); ++k)
    for (int r = 1; r < group->size(); ++r)
      if (all[static_cast<size_t>(r) * mine.size() + k] != all[k]) throw_difference(world, *group, texts[k], r);
}

namespace {

uint64_t bits_of(const RankNumber& number) {
  return std::visit([](auto value) { return std::bit_cast<uint64_t>(value); }, number.value);
}

// A number of the same kind as this rank's.
std::string text_of_bits(const RankNumber& number, uint64_t bits) {
  if (std::holds_alternative<double>(number.value)) return shortest(std::bit_cast<double>(bits));
  return concat(std::bit_cast<int64_t>(bits));
}

}  // namespace

void expect_same_hash(CommWorld& world, uint64_t hash, const std::function<std::vector<RankText>()>& texts,
                      std::span<const RankNumber> numbers, const std::string& failure) {
  const auto group = world.all_ranks(kGroup);
  std::vector<uint64_t> mine = {failure.empty() ? 0U : 1U, hash};
  for (const RankNumber& number : numbers)
    mine.insert(mine.end(), {bits_of(number), static_cast<uint64_t>(number.group)});
  const std::vector<uint64_t> all = gather(*group, mine, "program hash");
  const auto of = [&](int rank, size_t i) { return all[static_cast<size_t>(rank) * mine.size() + i]; };
  for (int r = 0; r < group->size(); ++r)
    if (of(r, 0) != 0) throw UserError(concat("rank ", r, " cannot go on: ", broadcast(*group, failure, r)));
  for (int r = 1; r < group->size(); ++r)
    if (of(r, 1) != of(0, 1)) {
      expect_same_texts(world, texts());
      SFSDP_CHECK(false, "ranks 0 and ", r, " have other hashes of the same texts");
    }
  for (size_t i = 0; i < numbers.size(); ++i) {
    const size_t bits = 2 + 2 * i, key = bits + 1;
    std::map<uint64_t, int> first;  // rank of each group
    for (int r = 0; r < group->size(); ++r) {
      const int like = first.try_emplace(of(r, key), r).first->second;
      if (of(r, bits) != of(like, bits))
        throw UserError(concat("rank ", like, " and rank ", r, " have different ", numbers[i].name, ": ",
                               text_of_bits(numbers[i], of(like, bits)), " and ", text_of_bits(numbers[i], of(r, bits)),
                               "\n  ", numbers[i].advice));
    }
  }
}

}  // namespace sfsdp::comm

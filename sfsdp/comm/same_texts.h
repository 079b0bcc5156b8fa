// SPDX-License-Identifier: BSD-3-Clause
// All ranks must have decided alike: compares what they are about to run, before the first other collective.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::comm {

struct RankText {
  std::string what;    // "programs": plural, as in "rank 0 and rank 1 have different programs"
  std::string text;    // this rank's
  std::string advice;  // "expected …"
  // What the difference means, from rank 0's text and the other's; "" or unset: nothing more to say.
  std::function<std::string(const std::string&, const std::string&)> explain = {};
};

// A collective call: every rank's numbers, in rank order. `what` names the call in errors.
std::vector<uint64_t> gather_numbers(CommWorld& world, const std::vector<uint64_t>& mine, const char* what);

// A collective call of all ranks: 8 bytes per text and rank. Where texts differ, rank 0's goes to the first rank that has
// another one, which tells all ranks in a few lines what differs.
//   throws: UserError on all ranks, of the first text that differs: both ranks, the first line, meaning, advice
void expect_same_texts(CommWorld& world, std::span<const RankText> texts);

// A number that is to be the same, bit for bit, on all ranks that give one `group`.
struct RankNumber {
  const char* name;                     // "Step::lr"
  std::variant<double, int64_t> value;  // this rank's
  int64_t group = 0;
  const char* advice = "expected the same on all ranks";
};

// The same for texts that are compared often: `hash` stands for them, `texts` is called only where hashes differ.
//   numbers: the same names on all ranks
//   failure: why this rank cannot go on, "" if it can
//   throws:  UserError on all ranks, naming the first one that cannot go on and its reason; else the texts as above; else the
//            first number that differs, with both values
void expect_same_hash(CommWorld& world, uint64_t hash, const std::function<std::vector<RankText>()>& texts,
                      std::span<const RankNumber> numbers = {}, const std::string& failure = "");

}  // namespace sfsdp::comm

// SPDX-License-Identifier: BSD-3-Clause
// All ranks must have decided alike: compares what they are about to run, before the first other collective.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::comm {

struct RankText {
  std::string what;    // "programs": plural, as in "rank 0 and rank 1 have different programs"
  std::string text;    // this rank's
  std::string advice;  // "expected …"
  // What the difference means, from rank 0's text and the other's; "" or unset: nothing more to say.
  std::function<std::string(const std::string&, const std::string&)> explain = {};
};

// A collective call of all ranks: 8 bytes per text and rank, and the texts themselves where they differ.
//   throws: UserError on all ranks, of the first text that differs: both ranks, the first line, meaning, advice
void expect_same_texts(CommWorld& world, std::span<const RankText> texts);

}  // namespace sfsdp::comm

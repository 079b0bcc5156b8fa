// SPDX-License-Identifier: BSD-3-Clause
// From tokens back to text.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "sfsdp/train/data/tokenizer/fields.h"
#include "sfsdp/train/data/tokenizer/normalizer.h"
#include "sfsdp/train/data/tokenizer/pattern.h"

namespace sfsdp::train::tokenizer {

// How tokens become text again: `decoder` of a tokenizer.json. Without one they are joined by blanks.
//   known: ByteLevel, ByteFallback, Fuse, Replace, Strip, Sequence
class Decoder {
 public:
  static Decoder parse(const Field& field);
  //   throws: UserError naming the rule that makes the text longer than longest_from() allows
  std::string decode(std::vector<std::string> tokens, MatchMemory& memory) const;

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  struct Strip {
    std::string character;
    uint64_t start, stop;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Fuse, Replace, Strip>;

  void add(const Field& field, int depth);

  std::vector<Step> steps_;
  bool is_given_ = false;
};

}  // namespace sfsdp::train::tokenizer

// SPDX-License-Identifier: BSD-3-Clause
// What changes a text before it is cut into words.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "sfsdp/train/data/tokenizer/fields.h"
#include "sfsdp/train/data/tokenizer/pattern.h"
#include "sfsdp/train/data/tokenizer/unicode.h"

namespace sfsdp::train::tokenizer {

// How long rules may make a text of `bytes`. Rules that are in use make it three times as long, where each blank becomes
// U+2581; the longest compatibility decomposition 11 times. What doubles the text again and again ends here.
size_t longest_from(size_t bytes);

// {"type": "Replace", "pattern", "content"}, of a normalizer or a decoder.
class Replace {
 public:
  explicit Replace(const Field& field);
  //   throws: UserError naming the rule where the result would be longer than `longest`
  std::string apply(std::string_view text, size_t longest, MatchMemory& memory) const;

 private:
  Pattern pattern_;
  std::string with_, where_;
};

// What happens to text before it is cut: `normalizer` of a tokenizer.json.
//   known: NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, Sequence
class Normalizer {
 public:
  static Normalizer parse(const Field& field);

  bool is_empty() const { return steps_.empty(); }
  //   throws: UserError naming the rule that makes the text longer than longest_from() allows
  void apply(std::string& text, MatchMemory& memory) const;

 private:
  struct Lowercase {};
  struct Strip {
    bool left, right;
  };
  struct Prepend {
    std::string text;
  };
  using Step = std::variant<NormalForm, Lowercase, Strip, Prepend, Replace>;

  void add(const Field& field, int depth);

  std::vector<Step> steps_;
};

// {"String": s} or {"Regex": r}, as patterns stand in a tokenizer.json.
Pattern parse_pattern(const Field& field);

}  // namespace sfsdp::train::tokenizer

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

// What happens to text before it is cut: `normalizer` of a tokenizer.json.
//   known: NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, Sequence
class Normalizer {
 public:
  static Normalizer parse(const Field& field);

  bool is_empty() const { return steps_.empty(); }
  void apply(std::string& text, MatchMemory& memory) const;

 private:
  struct Lowercase {};
  struct Strip {
    bool left, right;
  };
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Pattern pattern;
    std::string with;
  };
  using Step = std::variant<NormalForm, Lowercase, Strip, Prepend, Replace>;

  void add(const Field& field, int depth);

  std::vector<Step> steps_;
};

// {"String": s} or {"Regex": r}, as patterns stand in a tokenizer.json.
Pattern parse_pattern(const Field& field);
std::string replace_all(const Pattern& pattern, std::string_view text, std::string_view with, MatchMemory& memory);

}  // namespace sfsdp::train::tokenizer

// SPDX-License-Identifier: BSD-3-Clause
// Cuts a text into the words that are encoded each by itself.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sfsdp/train/data/tokenizer/fields.h"
#include "sfsdp/train/data/tokenizer/pattern.h"

namespace sfsdp::train::tokenizer {

// Takes the words, in order, none of them empty.
class WordSink {
 public:
  virtual ~WordSink() = default;
  virtual void word(std::string_view text) = 0;
};

// How text is cut into words: `pre_tokenizer` of a tokenizer.json.
//   known: Split, ByteLevel, Digits, Whitespace, WhitespaceSplit, Sequence
class PreTokenizer {
 public:
  static PreTokenizer parse(const Field& field);

  // Whether words come out as bytes, each of which stands for a character of GPT-2's alphabet: ByteLevel was the last step,
  // and left it to the model to spell them so.
  bool gives_bytes() const { return gives_bytes_; }
  void cut(std::string_view text, MatchMemory& memory, WordSink& sink) const;

 private:
  enum class Behavior : uint8_t { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };
  struct Split {
    Pattern pattern;
    Behavior behavior;
    bool invert;
  };
  struct ByteLevel {
    bool adds_space;
    bool spells;  // writes the alphabet's characters, as a step follows that reads them
  };
  using Step = std::variant<Split, ByteLevel>;

  void add(const Field& field, int depth);
  void add_byte_level(const Field& field);
  static Behavior parse_behavior(const Field& field);

  void run(size_t step, std::string_view text, MatchMemory& memory, WordSink& sink) const;
  void run_split(const Split& split, size_t next, std::string_view text, MatchMemory& memory, WordSink& sink) const;

  std::vector<Step> steps_;
  bool gives_bytes_ = false;
};

}  // namespace sfsdp::train::tokenizer

// SPDX-License-Identifier: BSD-3-Clause
// Tokens that are found in a text as they stand, before it is cut into words: `added_tokens` of a tokenizer.json.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sfsdp/train/data/tokenizer/bpe.h"
#include "sfsdp/train/data/tokenizer/fields.h"
#include "sfsdp/train/data/tokenizer/normalizer.h"

namespace sfsdp::train::tokenizer {

// Finds the texts of a set in a text: leftmost first, of these the longest, none overlapping. A trie, walked from each
// place where one of them may begin.
class TextSet {
 public:
  // Values are >= 0. Returns false if the text is there already.
  bool add(std::string_view text, int32_t value);
  bool is_empty() const { return nodes_.size() <= 1; }

  struct Match {
    size_t begin, end;
    int32_t value;
  };
  // The first match at or after `from`.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Node {
    uint8_t byte = 0;
    int32_t value = -1, child = -1, sibling = -1;
  };
  int32_t child_of(int32_t node, uint8_t byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);  // the root
  std::array<int32_t, 256> first_{};                // children of the root; 0: none
};

// `added_tokens` of a tokenizer.json: texts that become a token of their own wherever they stand.
class AddedTokens {
 public:
  // field: null where the file has none.
  //   throws: UserError too for an id that Hugging Face's library would not give it: it gives the model's own, or counts on
  static AddedTokens parse(const std::optional<Field>& field, const BpeModel& model, const Normalizer& normalizer);

  struct Piece {
    std::string_view text;  // to go on with; empty for an added token
    int32_t id;             // -1: no added token
  };
  // Cuts text at the tokens that are looked for before normalisation, or at those after it.
  std::vector<Piece> cut(std::string_view text, bool is_normalised, MatchMemory& memory) const;
  bool is_empty(bool is_normalised) const { return (is_normalised ? after_ : before_).is_empty(); }

  std::optional<int32_t> find(std::string_view token) const;
  // As decoding has it: the normalised text where there is one. Null for an id that none has.
  const std::string* token(int32_t id) const;
  bool is_special(const std::string& text) const { return special_.contains(text); }
  int32_t largest_id() const { return largest_id_; }

 private:
  struct Token {
    int32_t id = 0;
    std::string content, decoded;
    bool single_word = false, lstrip = false, rstrip = false;
  };

  std::vector<Token> tokens_;
  TextSet before_, after_;  // values are places in tokens_
  std::unordered_map<std::string, size_t> places_;
  std::unordered_map<int32_t, size_t> places_of_ids_;
  std::unordered_set<std::string> special_;
  std::optional<Pattern> word_;  // one character of a word
  int32_t largest_id_ = -1;
};

}  // namespace sfsdp::train::tokenizer

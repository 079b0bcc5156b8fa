// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/train/data/tokenizer/unicode.h"
#include "sfsdp/train/data/tokenizer/utf8.h"

namespace sfsdp::train::tokenizer {
namespace {

constexpr size_t kMostAdded = 1 << 16;
constexpr size_t kMostTokenBytes = 1024;  // of one: a walk from each place of a text must stay short

}  // namespace

// --- the trie ---

int32_t TextSet::child_of(int32_t node, uint8_t byte) const {
  int32_t child = nodes_[static_cast<size_t>(node)].child;
  while (child >= 0 && nodes_[static_cast<size_t>(child)].byte != byte)
    child = nodes_[static_cast<size_t>(child)].sibling;
  return child;
}

bool TextSet::add(std::string_view text, int32_t value) {
  SFSDP_CHECK(!text.empty() && value >= 0, "text of ", text.size(), " bytes, value ", value);
  int32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    int32_t next = child_of(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({byte, -1, -1, nodes_[static_cast<size_t>(node)].child});
      nodes_[static_cast<size_t>(node)].child = next;
    }
    if (node == 0) first_[byte] = next;
    node = next;
  }
  return std::exchange(nodes_[static_cast<size_t>(node)].value, value) < 0;
}

std::optional<TextSet::Match> TextSet::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    int32_t node = first_[static_cast<uint8_t>(text[begin])];
    std::optional<Match> longest;
    for (size_t at = begin + 1; node > 0; ++at) {
      if (const int32_t value = nodes_[static_cast<size_t>(node)].value; value >= 0) longest = {begin, at, value};
      node = at < text.size() ? child_of(node, static_cast<uint8_t>(text[at])) : -1;
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

// --- added tokens ---

AddedTokens AddedTokens::parse(const std::optional<Field>& field, const BpeModel& model, const Normalizer& normalizer) {
  AddedTokens result;
  if (!field) return result;
  const std::vector<Field> items = field->items();
  if (items.size() > kMostAdded) field->refuse(concat("at most ", kMostAdded, " added tokens"));
  MatchMemory memory;
  auto next_id = static_cast<int64_t>(model.size());
  for (const Field& item : items) {
    item.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    Token token;
    token.content = item.at("content").text();
    if (token.content.empty() || token.content.size() > kMostTokenBytes)
      item.at("content").refuse(concat("a text of 1 to ", kMostTokenBytes, " bytes"));
    if (!result.places_.emplace(token.content, result.tokens_.size()).second)
      item.at("content").refuse("a token that is not added twice");
    const auto own = model.find(token.content);
    const int64_t id = own ? *own : next_id++;
    if (item.at("id").whole(INT32_MAX) != static_cast<uint64_t>(id))
      item.at("id").refuse(concat(id, own ? ", its id in model.vocab" : ", the next that is free",
                                  ": that is what Hugging Face's library gives it"));
    token.id = static_cast<int32_t>(id);
    token.single_word = item.at("single_word").flag();
    token.lstrip = item.at("lstrip").flag();
    token.rstrip = item.at("rstrip").flag();
    token.decoded = token.content;
    const bool normalized = item.at("normalized").flag();
    if (normalized) normalizer.apply(token.decoded, memory);
    if (item.at("special").flag()) result.special_.insert(token.content);
    if (token.decoded.empty()) item.at("content").refuse("a text that the normalizer leaves something of");
    TextSet& set = normalized ? result.after_ : result.before_;
    if (!set.add(token.decoded, static_cast<int32_t>(result.tokens_.size())))
      item.at("content").refuse("a text that no other added token has after normalisation");
    result.largest_id_ = std::max(result.largest_id_, token.id);
    result.places_of_ids_.emplace(token.id, result.tokens_.size());
    if (token.single_word && !result.word_) result.word_ = Pattern::compile(R"([\w\x{200c}\x{200d}])", item.where());
    result.tokens_.push_back(std::move(token));
  }
  return result;
}

std::vector<AddedTokens::Piece> AddedTokens::cut(std::string_view text, bool is_normalised, MatchMemory& memory) const {
  const TextSet& set = is_normalised ? after_ : before_;
  const auto is_word = [&](std::string_view character) {
    return Matches(*word_, character, memory).next().has_value();
  };
  const auto stands_alone = [&](size_t begin, size_t end) {
    if (begin > 0) {
      const size_t previous = utf8_before(text, begin);
      if (is_word(text.substr(previous, begin - previous))) return false;
    }
    return end == text.size() || !is_word(text.substr(end, utf8_length(text[end])));
  };
  std::vector<Piece> pieces;
  size_t done = 0;
  for (auto match = set.find(text, 0); match; match = set.find(text, match->end)) {
    const Token& token = tokens_[static_cast<size_t>(match->value)];
    size_t begin = match->begin, end = match->end;
    if (token.single_word && !stands_alone(begin, end)) continue;
    if (token.lstrip) begin = std::max(begin - white_space_before(text.substr(0, begin)), done);
    if (token.rstrip) end += white_space_after(text.substr(end));
    if (done < begin) pieces.push_back({text.substr(done, begin - done), -1});
    // Even where it begins in white space that the token before has taken.
    pieces.push_back({{}, token.id});
    done = end;
  }
  if (done < text.size()) pieces.push_back({text.substr(done), -1});
  return pieces;
}

std::optional<int32_t> AddedTokens::find(std::string_view token) const {
  const auto found = places_.find(std::string(token));
  return found == places_.end() ? std::nullopt : std::optional(tokens_[found->second].id);
}

const std::string* AddedTokens::token(int32_t id) const {
  const auto found = places_of_ids_.find(id);
  return found == places_of_ids_.end() ? nullptr : &tokens_[found->second].decoded;
}

}  // namespace sfsdp::train::tokenizer

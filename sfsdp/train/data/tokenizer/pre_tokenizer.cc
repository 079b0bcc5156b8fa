// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "sfsdp/train/data/tokenizer/normalizer.h"
#include "sfsdp/train/data/tokenizer/utf8.h"

namespace sfsdp::train::tokenizer {
namespace {

constexpr size_t kMostSteps = 32;  // each may copy a word

// GPT-2's own words: https://github.com/openai/gpt-2, src/encoder.py.
constexpr std::string_view kGpt2Words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Rust's \w inside [...]: Oniguruma's, and both joiners.
constexpr std::string_view kRustWord = R"(\w\x{200c}\x{200d})";

struct Part {
  size_t begin, end;
  bool is_match;
};

// The whole text, cut where the pattern matches; empty matches too.
std::vector<Part> parts_of(const Pattern& pattern, bool invert, std::string_view text, MatchMemory& memory) {
  std::vector<Part> parts;
  size_t done = 0;
  Matches matches(pattern, text, memory);
  while (const auto match = matches.next()) {
    if (match->begin > done) parts.push_back({done, match->begin, invert});
    parts.push_back({match->begin, match->end, !invert});
    done = match->end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), invert});
  return parts;
}

// Adjacent parts become one where `joins(part, was_match)`, the flag being that of the part before.
template <class Joins>
std::vector<Part> merge(const std::vector<Part>& parts, const Joins& joins) {
  std::vector<Part> merged;
  bool was_match = false;
  for (const Part& part : parts) {
    if (!merged.empty() && joins(part, was_match)) {
      merged.back().begin = std::min(merged.back().begin, part.begin);
      merged.back().end = std::max(merged.back().end, part.end);
    } else {
      merged.push_back(part);
    }
    was_match = part.is_match;
  }
  return merged;
}

}  // namespace

PreTokenizer PreTokenizer::parse(const Field& field) {
  PreTokenizer result;
  result.add(field, 0);
  if (result.steps_.size() > kMostSteps) field.refuse("at most 32 steps");
  if (!result.steps_.empty())
    if (auto* last = std::get_if<ByteLevel>(&result.steps_.back())) {
      last->spells = false;
      result.gives_bytes_ = true;
      if (!last->adds_space) result.steps_.pop_back();
    }
  return result;
}

PreTokenizer::Behavior PreTokenizer::parse_behavior(const Field& field) {
  static const std::map<std::string, Behavior> kBehaviors = {{"Removed", Behavior::Removed},
                                                             {"Isolated", Behavior::Isolated},
                                                             {"MergedWithPrevious", Behavior::MergedWithPrevious},
                                                             {"MergedWithNext", Behavior::MergedWithNext},
                                                             {"Contiguous", Behavior::Contiguous}};
  const auto found = kBehaviors.find(field.text());
  if (found == kBehaviors.end()) field.refuse("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
  return found->second;
}

void PreTokenizer::add(const Field& field, int depth) {
  if (depth > kMostDepth) field.refuse("fewer sequences in sequences");
  const Field type = field.at("type");
  const std::string& name = type.text();
  const auto pattern = [&](std::string_view text) { return Pattern::compile(text, field.where()); };
  if (name == "Sequence") {
    field.allow_only({"pretokenizers"});
    for (const Field& item : field.at("pretokenizers").items()) add(item, depth + 1);
  } else if (name == "Split") {
    field.allow_only({"pattern", "behavior", "invert"});
    steps_.emplace_back(
        Split{parse_pattern(field.at("pattern")), parse_behavior(field.at("behavior")), field.at("invert").flag()});
  } else if (name == "ByteLevel") {
    add_byte_level(field);
  } else if (name == "Digits") {
    field.allow_only({"individual_digits"});
    const bool single = field.at("individual_digits").flag();
    steps_.emplace_back(Split{pattern(R"(\p{N})"), single ? Behavior::Isolated : Behavior::Contiguous, false});
  } else if (name == "Whitespace") {
    field.allow_only({});
    const std::string word(kRustWord);
    steps_.emplace_back(Split{pattern("[" + word + "]+|[^" + word + R"(\s]+)"), Behavior::Removed, true});
  } else if (name == "WhitespaceSplit") {
    field.allow_only({});
    steps_.emplace_back(Split{pattern(R"(\s)"), Behavior::Removed, false});
  } else {
    type.refuse("Split, ByteLevel, Digits, Whitespace, WhitespaceSplit or Sequence");
  }
}

void PreTokenizer::add_byte_level(const Field& field) {
  field.allow_only({"add_prefix_space", "trim_offsets", "use_regex"});
  field.at("trim_offsets").flag();  // of offsets alone
  const bool adds_space = field.at("add_prefix_space").flag(), cuts = field.flag_or("use_regex", true);
  steps_.emplace_back(ByteLevel{adds_space, !cuts});
  if (!cuts) return;
  // the space is added before the cut, the spelling comes after it
  steps_.emplace_back(Split{Pattern::compile(kGpt2Words, field.where()), Behavior::Isolated, false});
  steps_.emplace_back(ByteLevel{false, true});
}

void PreTokenizer::cut(std::string_view text, MatchMemory& memory, WordSink& sink) const { run(0, text, memory, sink); }

void PreTokenizer::run(size_t step, std::string_view text, MatchMemory& memory, WordSink& sink) const {
  if (text.empty()) return;
  if (step == steps_.size()) return sink.word(text);
  if (const auto* split = std::get_if<Split>(&steps_[step])) return run_split(*split, step + 1, text, memory, sink);
  const auto& byte_level = std::get<ByteLevel>(steps_[step]);
  std::string spaced;
  if (byte_level.adds_space && text[0] != ' ') {
    spaced.reserve(text.size() + 1);
    spaced.append(" ").append(text);
    text = spaced;
  }
  if (!byte_level.spells) return run(step + 1, text, memory, sink);
  std::string spelt;
  spelt.reserve(text.size() * 2);
  for (const char byte : text) append_utf8(spelt, char_of_byte(static_cast<uint8_t>(byte)));
  run(step + 1, spelt, memory, sink);
}

void PreTokenizer::run_split(const Split& split, size_t next, std::string_view text, MatchMemory& memory,
                             WordSink& sink) const {
  const auto pass_on = [&](size_t begin, size_t end) { run(next, text.substr(begin, end - begin), memory, sink); };
  if (split.behavior == Behavior::Isolated && next == steps_.size()) {  // the common one, without a list
    size_t done = 0;
    Matches matches(split.pattern, text, memory);
    while (const auto match = matches.next()) {
      pass_on(done, match->begin);
      pass_on(match->begin, match->end);
      done = match->end;
    }
    return pass_on(done, text.size());
  }
  std::vector<Part> parts = parts_of(split.pattern, split.invert, text, memory);
  switch (split.behavior) {
    case Behavior::Removed: std::erase_if(parts, [](const Part& part) { return part.is_match; }); break;
    case Behavior::Isolated: break;
    case Behavior::Contiguous:
      parts = merge(parts, [](const Part& part, bool was_match) { return part.is_match == was_match; });
      break;
    case Behavior::MergedWithPrevious:
      parts = merge(parts, [](const Part& part, bool was_match) { return part.is_match && !was_match; });
      break;
    case Behavior::MergedWithNext:
      std::reverse(parts.begin(), parts.end());
      parts = merge(parts, [](const Part& part, bool was_match) { return part.is_match && !was_match; });
      std::reverse(parts.begin(), parts.end());
  }
  for (const Part& part : parts) pass_on(part.begin, part.end);
}

}  // namespace sfsdp::train::tokenizer

// SPDX-License-Identifier: BSD-3-Clause
// Patterns of a tokenizer.json, matched by Oniguruma as in the library that they were written for.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace sfsdp::train::tokenizer {

// What matching needs beside the pattern; one per thread at a time.
class MatchMemory {
 public:
  MatchMemory();
  ~MatchMemory();
  MatchMemory(const MatchMemory&) = delete;
  MatchMemory& operator=(const MatchMemory&) = delete;

 private:
  friend class Matches;
  struct State;
  std::unique_ptr<State> state_;
};

// A compiled pattern of a tokenizer.json; immutable.
class Pattern {
 public:
  // Oniguruma's syntax, by Ruby's rules.
  //   where: for messages
  //   throws: UserError for what is no pattern, or is too long
  static Pattern compile(std::string_view pattern, const std::string& where);
  // Matches `text` itself, which is not empty.
  static Pattern literal(std::string_view text);

 private:
  friend class Matches;
  struct State;
  std::shared_ptr<const State> state_;
};

// The matches of a pattern in a text from left to right: an empty match right after the last one is passed over. State over
// time: the place to search from only grows.
class Matches {
 public:
  // `text` is valid UTF-8, and lives longer.
  Matches(const Pattern& pattern, std::string_view text, MatchMemory& memory);

  struct Range {
    size_t begin, end;
  };
  //   throws: UserError where the pattern takes too long
  std::optional<Range> next();

 private:
  std::optional<Range> search();

  const Pattern::State& pattern_;
  MatchMemory::State& memory_;
  std::string_view text_;
  size_t from_ = 0;
  std::optional<size_t> last_end_;
};

}  // namespace sfsdp::train::tokenizer

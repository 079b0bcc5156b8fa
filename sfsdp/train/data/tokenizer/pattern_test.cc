// SPDX-License-Identifier: BSD-3-Clause
// Expected matches are Oniguruma's, through Hugging Face's library: tests/fixtures/tokenizer_reference.py wrote them.
#include "sfsdp/train/data/tokenizer/pattern.h"
#include "sfsdp/testing/source_dir.h"

#include <doctest/doctest.h>

#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"

namespace sfsdp::train::tokenizer::pattern_test {
namespace {

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

// Without empty ones, which cut nothing.
Ranges matches_of(const Pattern& pattern, std::string_view text) {
  static MatchMemory memory;
  Ranges ranges;
  Matches matches(pattern, text, memory);
  while (const auto match = matches.next())
    if (match->begin < match->end) ranges.emplace_back(match->begin, match->end);
  return ranges;
}

std::string error_of(const std::string& pattern) {
  try {
    Pattern::compile(pattern, "t.json: here");
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("patterns match what Oniguruma matches: classes, case, anchors, intervals, look-around") {
  const std::string file = testing::source_dir() + "/tests/fixtures/tokenizers/patterns.json";
  const JsonValue json = parse_json(read_text_file(file, 16 << 20), file);
  const JsonArray& texts = *json.find("texts")->as<JsonArray>();
  for (const JsonValue& one : *json.find("patterns")->as<JsonArray>()) {
    const std::string& source = *one.find("pattern")->as<std::string>();
    const Pattern pattern = Pattern::compile(source, "t.json");
    const JsonArray& expected = *one.find("matches")->as<JsonArray>();
    REQUIRE(expected.size() == texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      Ranges ranges;
      for (const JsonValue& range : *expected[i].as<JsonArray>())
        ranges.emplace_back(*(*range.as<JsonArray>())[0].as<uint64_t>(), *(*range.as<JsonArray>())[1].as<uint64_t>());
      const std::string& text = *texts[i].as<std::string>();
      CHECK_MESSAGE(matches_of(pattern, text) == ranges, source, " in ", quote_safe(text));
    }
  }
}

TEST_CASE("what is no pattern is refused") {
  const std::pair<const char*, const char*> bad[] = {{"\\p{Lx}", "invalid character property name"},
                                                     {"*a", "target of repeat operator is not specified"},
                                                     {"(?=a)+", "target of repeat operator is invalid"},
                                                     {"(?{a})", "undefined group option"},
                                                     {"[b-a]", "empty range"},
                                                     {"a{200000}", "too big number"},
                                                     {"(a", "unmatched parenthesis"},
                                                     {"a)", "unmatched close parenthesis"},
                                                     {"[a", "premature end"},
                                                     {"\\", "end pattern at escape"}};
  for (const auto& [pattern, message] : bad) {
    const std::string error = error_of(pattern);
    CHECK_MESSAGE(error.find("t.json: here: pattern ") == 0, error);
    CHECK_MESSAGE(error.find(message) != std::string::npos, pattern, ": ", error);
  }
  for (const char* good : {"[\\x{4e00}-\\x{9fa5}]", "[\\x{20000}-\\x{2ffff}]", "[a-z]|\\x41-\\x{e9}", "[\\-\\]]"})
    CHECK_MESSAGE(error_of(good) == "no error", good);
  CHECK(error_of(std::string(5000, '(') + std::string(5000, ')')).find("parse depth limit") != std::string::npos);
  CHECK(error_of(std::string(70000, 'a')).find("expected at most 65536") != std::string::npos);
}

TEST_CASE("a pattern that goes back and forth without end is an error, not a hang") {
  const Pattern pattern = Pattern::compile("(a|aa)+$", "t.json: here");
  CHECK_THROWS_WITH_AS(matches_of(pattern, std::string(40, 'a') + "!"),
                       doctest::Contains("t.json: here: the pattern cannot be matched"), UserError);
}

TEST_CASE("groups that repeat 300,000 times need no more stack than there is") {
  const Pattern pattern = Pattern::compile("(?:a|bc)+", "t.json");
  CHECK(matches_of(pattern, std::string(300000, 'a')) == Ranges{{0, 300000}});
  const Pattern captures = Pattern::compile("(?:(?=a)a|(b))+c", "t.json");
  CHECK(matches_of(captures, std::string(300000, 'a') + "c") == Ranges{{0, 300001}});
}

}  // namespace
}  // namespace sfsdp::train::tokenizer::pattern_test

// SPDX-License-Identifier: BSD-3-Clause
// Expected matches are Oniguruma's, through Hugging Face's library: tests/fixtures/tokenizer_reference.py wrote them.
#include "sfsdp/train/data/tokenizer/pattern.h"

#include <doctest/doctest.h>

#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"

namespace sfsdp::train::tokenizer {
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

TEST_CASE("patterns match what Oniguruma matches: classes, case, anchors, intervals, look-around, new characters") {
  const std::string file = SFSDP_SOURCE_DIR "/tests/fixtures/tokenizers/patterns.json";
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

TEST_CASE("a pattern that could mean something else to Oniguruma is refused, with its place") {
  const std::pair<const char*, const char*> bad[] = {{"(a)\\1", "the escape \\1"},
                                                     {"(?<name>a)", "the group (?<n"},
                                                     {"(?m:.)", "the group (?m:"},
                                                     {"[a&&b]", "&& in a class"},
                                                     {"[a[^b]]", "a negated class inside a class"},
                                                     {"\\p{Cyrillic}", "\\p{\"Cyrillic\"}"},
                                                     {"\\p{Lx}", "general category"},
                                                     {"\\p{Alphabetic}", "general category"},
                                                     {"[[:alpha:]]", "a POSIX class"},
                                                     {"\\G", "the escape \\G"},
                                                     {"\\R", "the escape \\R"},
                                                     {"a**", "two quantifiers"},
                                                     {"*a", "nothing before it"},
                                                     {"(?=a)+", "after an anchor or a look-around"},
                                                     {"(?i:ss)", "the letters ss"},
                                                     {"(?i:s(?:s))", "the letters ss"},
                                                     {"(?i:é)", "beyond ASCII"},
                                                     {"(?i:\\p{L})", "\\p under (?i)"},
                                                     {"[b-a]", "goes down"},
                                                     {"a{3,2}", "goes down"},
                                                     {"a{2000}", "too large"},
                                                     {"(a", "a ( without its )"},
                                                     {"a)", "a ) without its ("},
                                                     {"[a", "a [ without its ]"},
                                                     {"[]a]", "a ] first in it"},
                                                     {"\\", "a \\ at the end"},
                                                     {"[\\x{20000}-\\x{2ffff}]", "newer than Unicode 14"},
                                                     {"(?<=a+)b", "PCRE2"}};
  for (const auto& [pattern, message] : bad) {
    const std::string error = error_of(pattern);
    CHECK_MESSAGE(error.find("t.json: here: pattern ") == 0, error);
    CHECK_MESSAGE(error.find(message) != std::string::npos, pattern, ": ", error);
  }
  CHECK(error_of(std::string(300, '(') + std::string(300, ')')).find("nested too deep") != std::string::npos);
  CHECK(error_of(std::string(70000, 'a')).find("too long") != std::string::npos);
}

TEST_CASE("a pattern that goes back and forth without end is an error, not a hang") {
  const Pattern pattern = Pattern::compile("(?:a+)+[bc]", "t.json: here");
  CHECK_THROWS_WITH_AS(matches_of(pattern, std::string(40, 'a')),
                       doctest::Contains("t.json: here: the pattern cannot be matched"), UserError);
}

TEST_CASE("groups that repeat 300,000 times need no more stack than there is") {
  const Pattern pattern = Pattern::compile("(?:a|bc)+", "t.json");
  CHECK(matches_of(pattern, std::string(300000, 'a')) == Ranges{{0, 300000}});
  const Pattern captures = Pattern::compile("(?:(?=a)a|(b))+c", "t.json");
  CHECK(matches_of(captures, std::string(300000, 'a') + "c") == Ranges{{0, 300001}});
}

}  // namespace
}  // namespace sfsdp::train::tokenizer

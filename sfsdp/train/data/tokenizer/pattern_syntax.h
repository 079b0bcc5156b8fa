// SPDX-License-Identifier: BSD-3-Clause
// Patterns from the syntax of Oniguruma, which tokenizer.json files use, to that of PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace sfsdp::train::tokenizer {

struct TranslatedPattern {
  std::string text;               // for PCRE2 with UTF and UCP, without further options
  bool reads_categories = false;  // holds \p, \s, \w and the like: what a character is matters, not only which
};

// A pattern of a tokenizer.json, which Oniguruma reads by Ruby's rules, as PCRE2 must be given it. They differ in what \w,
// \h, \v, ^, $, (?m), {,n} and {n}+ mean, and in which letters are one without regard to case.
//   known: literals, escapes, classes, (?: ), (?i: ), look-around, atomic groups, alternatives, quantifiers
//   where: for messages
//   throws: UserError naming the construct that is not known, and its place
TranslatedPattern translate_pattern(std::string_view pattern, const std::string& where);
// A pattern that matches `text` itself.
std::string quote_pattern(std::string_view text);

}  // namespace sfsdp::train::tokenizer

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/pattern_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/train/data/tokenizer/unicode.h"
#include "sfsdp/train/data/tokenizer/utf8.h"

namespace sfsdp::train::tokenizer {
namespace {

constexpr size_t kMostBytes = 1 << 16;
constexpr int kMostDepth = 100;
constexpr uint32_t kMostRepeats = 1000;

// Oniguruma's \w inside of [...]: letters, marks, digits, connectors. Outside of it six signs of Latin-1 count too.
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kWordSigns = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

constexpr std::array<std::string_view, 44> kProperties = {
    "L",  "Lu", "Ll", "Lt",  "Lm",       "Lo",       "M",     "Mn",    "Mc",     "Me",   "N",
    "Nd", "Nl", "No", "P",   "Pc",       "Pd",       "Ps",    "Pe",    "Pi",     "Pf",   "Po",
    "S",  "Sm", "Sc", "Sk",  "So",       "Z",        "Zs",    "Zl",    "Zp",     "C",    "Cc",
    "Cf", "Co", "Cn", "Han", "Hiragana", "Katakana", "Latin", "Greek", "Hebrew", "Thai", "Hangul"};

// Unicode's White_Space. PCRE2's own \s has U+180E too, which was a space before Unicode 6.3.
constexpr std::string_view kSpace = R"(\x{9}-\x{d}\x{85}\p{Z})";
constexpr std::string_view kNoSpace = R"(\S\x{180e})";

std::string as_hex(uint32_t c) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string digits;
  for (; c != 0 || digits.empty(); c >>= 4) digits.insert(digits.begin(), kDigits[c & 15]);
  return "\\x{" + digits + "}";
}

bool is_letter(uint32_t c) { return c < 0x80 && std::isalpha(static_cast<int>(c)); }

// Reads from left to right, and writes what PCRE2 reads.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : in_(pattern), where_(where) {}

  TranslatedPattern translate() {
    if (in_.size() > kMostBytes) fail("too long", concat("at most ", kMostBytes, " bytes"));
    alternatives(0);
    if (at_ < in_.size()) fail("a ) without its (", "as many ( as )");
    return {std::move(out_), reads_categories_};
  }

 private:
  [[noreturn]] void fail(const std::string& got, const std::string& expected) const {
    throw UserError(
        concat(where_, ": pattern ", quote_safe(in_), ": ", got, " before byte ", at_, "\n  expected ", expected));
  }
  [[noreturn]] void not_known(const std::string& got) const {
    fail(got, "literals, escapes, \\p of a category, classes, (?: ), (?i: ), look-around, |, quantifiers");
  }

  bool ends() const { return at_ == in_.size(); }
  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }
  uint32_t take_char() {
    if (ends()) fail("the pattern ends", "more after it");
    const uint32_t c = utf8_at(in_, at_);
    at_ += utf8_length(in_[at_]);
    return c;
  }

  void alternatives(int depth) {
    if (depth > kMostDepth) fail("groups nested too deep", concat("at most ", kMostDepth, " levels"));
    const char letter_before = last_letter_;
    while (!ends() && !next_is(")")) {
      if (take("|")) {
        out_ += '|';
        last_letter_ = letter_before;
        continue;
      }
      if (next_is("(?i)")) {  // Ruby's goes over all alternatives that follow in this group
        at_ += 4;
        const bool before = std::exchange(ignores_case_, true);
        out_ += "(?i:";
        alternatives(depth + 1);
        out_ += ')';
        ignores_case_ = before;
        return;
      }
      piece(depth);
    }
  }

  // An atom and what repeats it.
  void piece(int depth) {
    const size_t begin = out_.size();
    const bool repeats = atom(depth);
    const size_t end = out_.size();
    quantifier(begin);
    if (!repeats && out_.size() != end)
      fail("a quantifier after an anchor or a look-around", "it after a character or a group");
    if (!ends() && (next_is("*") || next_is("+") || next_is("?"))) fail("two quantifiers in a row", "one, or a group");
  }

  void quantifier(size_t begin) {
    if (ends()) return;
    const char c = in_[at_];
    if (c == '?' || c == '*' || c == '+') {
      ++at_;
      out_ += c;
      if (take("?")) out_ += '?';
      if (take("+")) out_ += '+';
      last_letter_ = 0;
    } else if (c == '{') {
      interval(begin);
    }
  }

  // Ruby: {n}? is an optional {n}, and {n,m}+ repeats {n,m}; neither is lazy or possessive.
  void interval(size_t begin) {
    const size_t start = at_;
    ++at_;
    const auto low = number();
    const bool comma = take(",");
    const auto high = comma ? number() : low;
    if (!take("}") || (!low && !high)) {  // no interval: a literal brace
      at_ = start;
      return;
    }
    if (ignores_case_) fail("an interval under (?i)", "the letters written out");
    if (low.value_or(0) > kMostRepeats || high.value_or(0) > kMostRepeats)
      fail("a repeat count that is too large", concat("at most ", kMostRepeats));
    if (low && high && *low > *high) fail("an interval that goes down", "{low,high}");
    out_ += concat("{", low.value_or(0), comma ? "," : "", comma && high ? concat(*high) : "", "}");
    last_letter_ = 0;
    const bool fixed = !comma;
    if (take("?")) {
      if (fixed) out_.insert(begin, "(?:").append(")");
      out_ += '?';
    } else if (take("+")) {
      out_.insert(begin, "(?:").append(")+");
    }
  }

  std::optional<uint32_t> number() {
    uint32_t value = 0;
    const size_t start = at_;
    for (; !ends() && in_[at_] >= '0' && in_[at_] <= '9'; ++at_)
      value = std::min<uint32_t>(value * 10 + static_cast<uint32_t>(in_[at_] - '0'), 1 << 20);
    return at_ == start ? std::nullopt : std::optional(value);
  }

  // Returns whether a quantifier may follow.
  bool atom(int depth) {
    if (next_is("*") || next_is("+") || next_is("?"))
      fail("a quantifier with nothing before it", "a character or a group");
    if (next_is("(")) return group(depth);
    if (next_is("[")) {
      last_letter_ = 0;
      out_ += char_class(0);
      return true;
    }
    if (take("^")) return anchor("(?m:^)");
    if (take("$")) return anchor("(?m:$)");
    if (take(".")) {
      out_ += '.';
      last_letter_ = 0;
      return true;
    }
    if (next_is("\\")) return escape();
    literal(take_char());
    return true;
  }

  bool anchor(std::string_view text) {
    out_ += text;
    last_letter_ = 0;
    return false;
  }

  bool group(int depth) {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kKinds = {{{"(?:", "(?:"},
                                                                                             {"(?i:", "(?i:"},
                                                                                             {"(?=", "(?="},
                                                                                             {"(?!", "(?!"},
                                                                                             {"(?<=", "(?<="},
                                                                                             {"(?<!", "(?<!"},
                                                                                             {"(?>", "(?>"}}};
    std::string_view kind;
    for (const auto& [from, to] : kKinds)
      if (kind.empty() && take(from)) kind = to;
    if (kind.empty() && (next_is("(?") || next_is("(*")))
      not_known(concat("the group ", std::string(in_.substr(at_, 4))));
    if (kind.empty()) take("("), kind = "(?:";  // what it captures nobody reads
    out_ += kind;
    const bool before = ignores_case_;
    ignores_case_ = before || kind == "(?i:";
    alternatives(depth + 1);
    ignores_case_ = before;
    if (!take(")")) fail("a ( without its )", "as many ) as (");
    out_ += ')';
    return kind == "(?:" || kind == "(?i:" || kind == "(?>";
  }

  void literal(uint32_t c) {
    check_literal(c, c);
    if (ignores_case_) check_case(c);
    out_ += is_letter(c) || (c >= '0' && c <= '9') ? std::string(1, static_cast<char>(c)) : as_hex(c);
    last_letter_ = is_letter(c) ? static_cast<char>(std::tolower(static_cast<int>(c))) : '\0';
  }

  void check_literal(uint32_t first, uint32_t last) const {
    if (!keeps_new_characters_together(first, last))
      fail("a character or range that tells apart characters newer than Unicode 14", "one that does not");
  }

  // Oniguruma takes some pairs of letters for one character without regard to case: ss for U+00DF, st for U+FB06.
  void check_case(uint32_t c) const {
    if (c >= 0x80) fail("a character beyond ASCII under (?i)", "ASCII alone there");
    if (!is_letter(c)) return;
    const std::array<char, 2> pair = {last_letter_, static_cast<char>(std::tolower(static_cast<int>(c)))};
    const std::string_view two(pair.data(), 2);
    if (two == "ss" || two == "st" || two == "ff" || two == "fi" || two == "fl")
      fail(concat("the letters ", std::string(two), " in a row under (?i)"), "none of ss, st, ff, fi, fl there");
  }

  // An escape outside of a class.
  bool escape() {
    last_letter_ = 0;
    if (take("\\A")) return anchor("\\A");
    if (take("\\z")) return anchor("\\z");
    if (take("\\Z")) return anchor("\\Z");
    const auto word = [&](bool is_border) {
      reads_categories_ = true;
      const std::string one = concat("[", kWord, kWordSigns, "]");
      return is_border ? concat("(?:(?<=", one, ")(?!", one, ")|(?<!", one, ")(?=", one, "))")
                       : concat("(?:(?<=", one, ")(?=", one, ")|(?<!", one, ")(?!", one, "))");
    };
    if (take("\\b")) return anchor(word(true));
    if (take("\\B")) return anchor(word(false));
    bool negated = false;
    if (const auto set = set_escape(negated)) {
      out_ += concat(negated ? "[^" : "[", *set, *set == kWord ? kWordSigns : "", "]");
      return true;
    }
    literal(char_escape());
    return true;
  }

  // \s, \d, \p{L} and the like: what stands for it inside [...]; `negated` for \S, \D, \P{L}.
  std::optional<std::string> set_escape(bool& negated) {
    if (!next_is("\\") || at_ + 1 >= in_.size()) return std::nullopt;
    const char kind = in_[at_ + 1];
    negated = std::isupper(static_cast<unsigned char>(kind)) != 0;
    std::string set;
    switch (std::tolower(static_cast<unsigned char>(kind))) {
      case 's': set = kSpace; break;
      case 'd': set = "\\p{Nd}"; break;
      case 'w': set = kWord; break;
      case 'h': set = "0-9a-fA-F"; break;
      case 'p': return property(negated);
      default: return std::nullopt;
    }
    at_ += 2;
    if (kind != 'h' && kind != 'H') reads_categories_ = true;
    if (ignores_case_ && set == kWord) fail("\\w under (?i)", "\\s, \\d or ASCII there");
    return set;
  }

  std::string property(bool& negated) {
    at_ += 2;
    const size_t end = in_.find('}', at_);
    if (!take("{") || end == std::string_view::npos) fail("\\p without {name}", "\\p{L}");
    if (take("^")) negated = !negated;
    const std::string_view name = in_.substr(at_, end - at_);
    if (std::find(kProperties.begin(), kProperties.end(), name) == kProperties.end())
      fail(concat("\\p{", quote_safe(name), "}"),
           "a general category such as L, Lu, N, P, S, Z, or Han, Hiragana, Katakana, "
           "Latin, Greek, Hebrew, Thai, Hangul");
    if (ignores_case_) fail("\\p under (?i)", "\\s, \\d or ASCII there");
    at_ = end + 1;
    reads_categories_ = true;
    const bool is_script = name.size() > 2;  // by itself PCRE2 takes its Script_Extensions
    return concat(is_script ? "\\p{sc:" : "\\p{", name, "}");
  }

  // \n, \x{41}, \u0041, \. and the like.
  uint32_t char_escape() {
    at_ += 1;
    if (ends()) fail("a \\ at the end", "a character after it");
    const uint32_t c = take_char();
    switch (c) {
      case 'n': return '\n';
      case 'r': return '\r';
      case 't': return '\t';
      case 'f': return '\f';
      case 'v': return '\v';
      case 'a': return '\a';
      case 'e': return 0x1b;
      case 'x': return next_is("{") ? hex_in_braces() : hex_digits(1, 2);
      case 'u': return hex_digits(4, 4);
      default: break;
    }
    if (c < 0x80 && std::isalnum(static_cast<int>(c))) not_known(concat("the escape \\", static_cast<char>(c)));
    return c;
  }

  uint32_t hex_in_braces() {
    take("{");
    const uint32_t c = hex_digits(1, 8);
    if (!take("}")) fail("\\x{ without }", "\\x{41}");
    return c;
  }

  uint32_t hex_digits(int least, int most) {
    uint32_t value = 0;
    int count = 0;
    for (; count < most && !ends() && std::isxdigit(static_cast<unsigned char>(in_[at_])); ++count, ++at_) {
      const int c = std::tolower(static_cast<unsigned char>(in_[at_]));
      value = value << 4 | static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
      if (value > 0x10ffff) break;
    }
    const bool surrogate = value >= 0xd800 && value < 0xe000;
    if (count < least || value > 0x10ffff || surrogate)
      fail("no character in hexadecimal", "\\x41, \\x{41} or \\u0041");
    if (value >= 0x80 && least == 1 && in_[at_ - 1] != '}' && !next_is("}")) fail("\\x of a byte above 7f", "\\x{e9}");
    return value;
  }

  // [...]: what it holds in PCRE2's spelling, which has no classes in classes: they become parts of it.
  std::string char_class(int depth) {
    if (depth > kMostDepth) fail("classes nested too deep", concat("at most ", kMostDepth, " levels"));
    take("[");
    const bool negated = take("^");
    std::string items;
    bool first = true;
    while (first || !next_is("]")) {
      if (ends()) fail("a [ without its ]", "a ] after it");
      class_item(items, first, depth);
      first = false;
    }
    take("]");
    return concat(negated ? "[^" : "[", items, "]");
  }

  void class_item(std::string& items, bool first, int depth) {
    if (first && next_is("]")) fail("an empty class, or a ] first in it", "\\] for the character");
    if (next_is("&&")) not_known("&& in a class");
    if (next_is("[:")) {
      items += posix();
      return;
    }
    if (next_is("[")) {
      const std::string inner = char_class(depth + 1);
      if (inner.starts_with("[^")) not_known("a negated class inside a class");
      items += inner.substr(1, inner.size() - 2);
      return;
    }
    bool negated = false;
    if (const auto set = set_escape(negated)) {
      items += negated ? negated_set(*set) : *set;
      if (next_is("-") && !in_.substr(at_).starts_with("-]")) fail("a - after a set", "\\- for the character");
      return;
    }
    const uint32_t low = class_char();
    uint32_t high = low;
    if (next_is("-") && !in_.substr(at_).starts_with("-]")) {
      take("-");
      if (next_is("[") || next_is("&&") || set_follows()) fail("a set as the end of a range", "a character");
      high = class_char();
      if (high < low) fail("a range that goes down", "its smaller end first");
    }
    if (ignores_case_ && high >= 0x80) fail("a character beyond ASCII under (?i)", "ASCII alone there");
    check_literal(low, high);
    items += low == high ? as_hex(low) : concat(as_hex(low), "-", as_hex(high));
  }

  bool set_follows() const {
    constexpr std::string_view kKinds = "sSdDwWhHpP";
    return next_is("\\") && at_ + 1 < in_.size() && kKinds.find(in_[at_ + 1]) != std::string_view::npos;
  }

  uint32_t class_char() {
    if (!next_is("\\")) return take_char();
    if (take("\\b")) return '\b';
    return char_escape();
  }

  std::string negated_set(const std::string& set) const {
    if (set == kSpace) return std::string(kNoSpace);
    if (set.starts_with("\\p{") && set.find('}') == set.size() - 1) return "\\P" + set.substr(2);
    not_known("\\W or \\H in a class");
  }

  std::string posix() {
    reads_categories_ = true;
    if (ignores_case_) not_known("a POSIX class under (?i)");
    if (take("[:space:]")) return std::string(kSpace);
    if (take("[:digit:]")) return "\\p{Nd}";
    if (take("[:punct:]")) return "\\p{P}\\p{S}";
    if (take("[:word:]")) return std::string(kWord);
    fail("a POSIX class", "[:space:], [:digit:], [:punct:] or [:word:]");
  }

  std::string_view in_;
  const std::string& where_;
  size_t at_ = 0;
  std::string out_;
  bool reads_categories_ = false;
  bool ignores_case_ = false;
  char last_letter_ = '\0';  // the literal just before, for pairs of letters
};

}  // namespace

TranslatedPattern translate_pattern(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).translate();
}

std::string quote_pattern(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) out += as_hex(utf8_at(text, at));
  return out;
}

}  // namespace sfsdp::train::tokenizer

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/lexer.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/type.h"

namespace sfsdp::ir {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

// Not <cctype>: its answers depend on the locale.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_char(char c) { return is_letter(c) || is_digit(c) || c == '.'; }

class Lexer {
 public:
  explicit Lexer(std::string_view line) : line_(line) {}

  std::vector<Token> lex() {
    std::vector<Token> tokens;
    while (true) {
      while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r')) ++at_;
      if (at_ == line_.size() || line_.substr(at_).starts_with("//")) break;
      const int column = this->column();
      Token token = lex_token();
      token.column = column;
      tokens.push_back(std::move(token));
    }
    tokens.push_back({.kind = Token::Kind::End, .text = "", .column = column()});
    return tokens;
  }

 private:
  int column() const { return static_cast<int>(at_) + 1; }

  Token lex_token() {
    const char c = line_[at_];
    if (c == '%') return lex_value();
    if (c == '"') return lex_string();
    if (is_letter(c)) return {.kind = Token::Kind::Word, .text = take(is_name_char)};
    if (is_digit(c) || c == '-') return lex_number();
    if (std::string_view(",=[](){}:/~").find(c) != std::string_view::npos) {
      ++at_;
      return {.kind = Token::Kind::Punct, .text = std::string(1, c)};
    }
    throw SyntaxError{column(), concat("unexpected character '", c, "'"), "put text in double quotes"};
  }

  template <class Predicate>
  std::string take(Predicate wanted) {
    const size_t first = at_;
    while (at_ < line_.size() && wanted(line_[at_])) ++at_;
    return std::string(line_.substr(first, at_ - first));
  }

  Token lex_value() {
    ++at_;
    std::string name = take(is_name_char);
    if (name.empty()) throw SyntaxError{column(), "% without a name", "expected letters, digits, '_' or '.' after %"};
    return {.kind = Token::Kind::Value, .text = std::move(name)};
  }

  Token lex_number() {
    const size_t first = at_++;
    while (at_ < line_.size()) {
      const char previous = line_[at_ - 1];
      const bool exponent_sign =
          (line_[at_] == '+' || line_[at_] == '-') && (previous == 'e' || previous == 'E') && at_ > first + 1;
      if (!is_name_char(line_[at_]) && !exponent_sign) break;
      ++at_;
    }
    return {.kind = Token::Kind::Number, .text = std::string(line_.substr(first, at_ - first))};
  }

  Token lex_string() {
    const int first = column();
    ++at_;
    std::string text;
    while (at_ < line_.size() && line_[at_] != '"') text += line_[at_] == '\\' ? lex_escape() : line_[at_++];
    if (at_ == line_.size()) throw SyntaxError{first, "a string without its closing quote", "add \""};
    ++at_;
    return {.kind = Token::Kind::String, .text = std::move(text)};
  }

  char lex_escape() {
    const int first = column();
    const std::string_view rest = line_.substr(at_ + 1);
    if (!rest.empty()) {
      at_ += 2;
      if (rest[0] == '"' || rest[0] == '\\') return rest[0];
      if (rest[0] == 'n') return '\n';
      if (rest[0] == 't') return '\t';
      if (rest[0] == 'x' && rest.size() >= 3) {
        const size_t high = kHexDigits.find(rest[1]), low = kHexDigits.find(rest[2]);
        at_ += 2;
        if (high != std::string_view::npos && low != std::string_view::npos) return static_cast<char>(high * 16 + low);
      }
    }
    throw SyntaxError{first, "an unknown escape in a string", R"(expected one of \" \\ \n \t \x0f)"};
  }

  std::string_view line_;
  size_t at_ = 0;
};

}  // namespace

std::vector<Token> lex_line(std::string_view line) { return Lexer(line).lex(); }

bool is_word(std::string_view text) {
  return !text.empty() && is_letter(text[0]) && std::ranges::all_of(text, is_name_char);
}

bool is_reserved_word(std::string_view text) {
  return text == "true" || text == "false" || text == "none" || text == "inf" || text == "nan" ||
         parse_dtype(text).has_value();
}

std::string quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += "\\x";
      quoted += kHexDigits[byte / 16];
      quoted += kHexDigits[byte % 16];
    } else {
      quoted += c;  // UTF-8 passes through
    }
  }
  return quoted + '"';
}

std::string quote_if_needed(std::string_view text) {
  return is_word(text) && !is_reserved_word(text) ? std::string(text) : quote(text);
}

}  // namespace sfsdp::ir

// SPDX-License-Identifier: BSD-3-Clause
// Words of one line of IR text. Only the parser reads them; the printer asks here what must be quoted.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sfsdp::ir {

struct Token {
  enum class Kind {
    Value,   // %name, text without '%'
    Word,    // [A-Za-z_][A-Za-z0-9_.]*
    Number,  // 3, -1.5, 1e+20, -inf
    String,  // "…", text with the escapes undone
    Punct,   // one of , = [ ] ( ) { } : / ~
    End,     // of the line
  };
  Kind kind = Kind::End;
  std::string text;
  int column = 1;  // 1-based
};

// Thrown while a line is read, caught once per line: what is wrong with the rest of it would be guesswork.
struct SyntaxError {
  int column = 1;
  std::string message;
  std::string detail;
};

// The last token is End. A comment reaches from // to the end of the line.
std::vector<Token> lex_line(std::string_view line);

bool is_word(std::string_view text);
// Words that mean something else as an attribute's value: true, f32, inf, …
bool is_reserved_word(std::string_view text);
// A bare word if that reads back as the same string, else quoted with escapes.
std::string quote_if_needed(std::string_view text);
std::string quote(std::string_view text);

}  // namespace sfsdp::ir

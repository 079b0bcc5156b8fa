// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/toml_text.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// The first position after the quoted text that begins at `begin`; the end of `text` where it does not end. Nothing
// matters after the line of an unclosed one-line text: toml++ reads no further.
size_t after_quoted(std::string_view text, size_t begin) {
  const char quote = text[begin];
  const bool is_long = text.substr(begin, 3) == std::string(3, quote);
  size_t at = begin + (is_long ? 3 : 1);
  while (at < text.size()) {
    if (quote == '"' && text[at] == '\\') {
      at += 2;
    } else if (text[at] != quote) {
      ++at;
    } else if (!is_long) {
      return at + 1;
    } else {
      const size_t run = std::min(text.find_first_not_of(quote, at), text.size()) - at;
      at += run;
      if (run >= 3) return at;  // four or five: the first ones belong to the text
    }
  }
  return text.size();
}

}  // namespace

void check_toml_characters(std::string_view text, const std::string& file) {
  size_t at = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
    } else if (c == '"' || c == '\'') {
      at = after_quoted(text, at);
    } else if ((static_cast<unsigned char>(c) & 0x80) != 0) {
      throw UserError(concat(file, ":", 1 + std::ranges::count(text.substr(0, at), '\n'),
                             ": a character that is not ASCII\n  expected those in quotes and comments only"));
    } else {
      ++at;
    }
  }
}

}  // namespace sfsdp

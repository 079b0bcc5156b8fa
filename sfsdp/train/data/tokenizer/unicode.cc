// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/train/data/tokenizer/utf8.h"

namespace sfsdp::train::tokenizer {
namespace {

utf8proc_option_t options_of(NormalForm form) {
  switch (form) {
    case NormalForm::NFC: return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    case NormalForm::NFD: return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    case NormalForm::NFKC: return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    default: return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  }
}

// Below U+0300 nothing composes, and NFC leaves all as it is. CJK ideographs, kana of their own and most punctuation are
// stable too, but that is a question of tables, which normalising answers.
bool is_nfc_by_range(std::string_view text) {
  return std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0xcc; });
}
bool is_ascii(std::string_view text) {
  return std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

}  // namespace

bool is_white_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t white_space_before(std::string_view text) {
  size_t at = text.size();
  while (at > 0) {
    const size_t previous = utf8_before(text, at);
    if (!is_white_space(utf8_at(text, previous))) break;
    at = previous;
  }
  return text.size() - at;
}

size_t white_space_after(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && is_white_space(utf8_at(text, at))) at += utf8_length(text[at]);
  return at;
}

void normalise(std::string& text, NormalForm form) {
  if (is_ascii(text) || (form == NormalForm::NFC && is_nfc_by_range(text))) return;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  std::vector<utf8proc_int32_t> buffer(text.size() + 1);  // reencode adds a zero byte
  const auto room = [&] { return static_cast<utf8proc_ssize_t>(buffer.size()) - 1; };
  utf8proc_ssize_t count = utf8proc_decompose(bytes, size, buffer.data(), room(), options_of(form));
  if (count > room()) {
    buffer.resize(static_cast<size_t>(count) + 1);
    count = utf8proc_decompose(bytes, size, buffer.data(), room(), options_of(form));
  }
  SFSDP_CHECK(count >= 0, "utf8proc_decompose: ", utf8proc_errmsg(count));
  count = utf8proc_reencode(buffer.data(), count, options_of(form));
  SFSDP_CHECK(count >= 0, "utf8proc_reencode: ", utf8proc_errmsg(count));
  text.assign(reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(count));
}

void lower_case(std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const uint32_t c = utf8_at(text, at);
    if (c < 0x80) {
      out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    } else if (c == 0x130) {  // the one character whose lower case is two
      out += "i\xcc\x87";
    } else {
      append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  text = std::move(out);
}

}  // namespace sfsdp::train::tokenizer

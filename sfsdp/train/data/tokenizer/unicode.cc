// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/train/data/tokenizer/utf8.h"

namespace sfsdp::train::tokenizer {
namespace {

struct Range {
  uint32_t first, last;
  int32_t value;  // the stand-in, or the offset of the lower case
};

constexpr Range kStandIns[] = {
#define SFSDP_STAND_IN(first, last, other) {first, last, other},
#define SFSDP_INERT(first, last)
#define SFSDP_LOWER(first, last, offset)
#include "sfsdp/train/data/tokenizer/unicode_tables.def"
#undef SFSDP_STAND_IN
#undef SFSDP_INERT
};

constexpr Range kInert[] = {
#define SFSDP_STAND_IN(first, last, other)
#define SFSDP_INERT(first, last) {first, last, 0},
#include "sfsdp/train/data/tokenizer/unicode_tables.def"
#undef SFSDP_INERT
#undef SFSDP_LOWER
};

constexpr Range kLower[] = {
#define SFSDP_INERT(first, last)
#define SFSDP_LOWER(first, last, offset) {first, last, offset},
#include "sfsdp/train/data/tokenizer/unicode_tables.def"
#undef SFSDP_STAND_IN
#undef SFSDP_INERT
#undef SFSDP_LOWER
};

// Ranges in order, with a filter of 256 characters a bit, as texts have few characters of theirs.
class Table {
 public:
  template <size_t n>
  explicit Table(const Range (&ranges)[n]) : begin_(ranges), end_(ranges + n) {
    for (const Range& range : ranges)
      for (uint32_t block = range.first >> 8; block <= range.last >> 8; ++block) blocks_.set(block);
  }

  const Range* find(uint32_t c) const {
    if (!blocks_[c >> 8]) return nullptr;
    const Range* range = std::lower_bound(begin_, end_, c, [](const Range& r, uint32_t x) { return r.last < x; });
    return range != end_ && range->first <= c ? range : nullptr;
  }

  const Range* begin() const { return begin_; }
  const Range* end() const { return end_; }

 private:
  const Range* begin_;
  const Range* end_;
  std::bitset<0x1100> blocks_;
};

const Table& stand_ins() {
  static const Table kTable(kStandIns);
  return kTable;
}
const Table& inert() {
  static const Table kTable(kInert);
  return kTable;
}

utf8proc_option_t options_of(NormalForm form) {
  switch (form) {
    case NormalForm::NFC: return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    case NormalForm::NFD: return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    case NormalForm::NFKC: return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    default: return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  }
}

// Appends the normal form of a text without inert characters.
void append_normalised(std::string& out, std::string_view text, utf8proc_option_t options,
                       std::vector<utf8proc_int32_t>& buffer) {
  if (text.empty()) return;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  const auto room = [&] { return static_cast<utf8proc_ssize_t>(buffer.size()) - 1; };  // reencode adds a zero byte
  if (buffer.size() <= text.size()) buffer.resize(text.size() + 1);
  utf8proc_ssize_t count = utf8proc_decompose(bytes, size, buffer.data(), room(), options);
  if (count > room()) {
    buffer.resize(static_cast<size_t>(count) + 1);
    count = utf8proc_decompose(bytes, size, buffer.data(), room(), options);
  }
  SFSDP_CHECK(count >= 0, "utf8proc_decompose: ", utf8proc_errmsg(count));
  count = utf8proc_reencode(buffer.data(), count, options);
  SFSDP_CHECK(count >= 0, "utf8proc_reencode: ", utf8proc_errmsg(count));
  out.append(reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(count));
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
  std::string out;
  out.reserve(text.size() + 16);
  std::vector<utf8proc_int32_t> buffer;
  const std::string_view all = text;
  size_t begin = 0;
  for (size_t at = 0; at < all.size();) {
    const size_t length = utf8_length(all[at]);
    if (length > 1 && inert().find(utf8_at(all, at))) {
      append_normalised(out, all.substr(begin, at - begin), options_of(form), buffer);
      out += all.substr(at, length);
      begin = at + length;
    }
    at += length;
  }
  append_normalised(out, all.substr(begin), options_of(form), buffer);
  text = std::move(out);
}

void lower_case(std::string& text) {
  static const Table kTable(kLower);
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const uint32_t c = utf8_at(text, at);
    if (c < 0x80) {
      out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    } else if (c == 0x130) {  // the one character whose lower case is two
      out += "i\xcc\x87";
    } else if (const Range* range = kTable.find(c)) {
      append_utf8(out, static_cast<uint32_t>(static_cast<int32_t>(c) + range->value));
    } else {
      append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  text = std::move(out);
}

bool replace_new_characters(std::string_view text, std::string& out) {
  bool found = false;
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0xe0) {  // none is shorter than three bytes
      ++at;
      continue;
    }
    const size_t length = utf8_length(text[at]);
    if (const Range* range = stand_ins().find(utf8_at(text, at))) {
      if (!found) out = text;
      found = true;
      std::string other;
      append_utf8(other, static_cast<uint32_t>(range->value));
      out.replace(at, length, other);
    }
    at += length;
  }
  return found;
}

bool keeps_new_characters_together(uint32_t first, uint32_t last) {
  const auto holds = [&](uint32_t c) { return c >= first && c <= last; };
  return std::all_of(stand_ins().begin(), stand_ins().end(), [&](const Range& range) {
    const bool all = first <= range.first && last >= range.last, none = last < range.first || first > range.last;
    return holds(static_cast<uint32_t>(range.value)) ? all : none;
  });
}

}  // namespace sfsdp::train::tokenizer

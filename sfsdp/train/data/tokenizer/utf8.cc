// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/utf8.h"

#include <array>

#include "sfsdp/base/json.h"
#include "sfsdp/train/data/tokenizer/tokenizer.h"

namespace sfsdp::train {

namespace {

struct ByteAlphabet {
  std::array<uint16_t, 256> chars{};
  std::array<int16_t, 324> bytes{};  // the largest of its characters is U+0143

  constexpr ByteAlphabet() {
    bytes.fill(-1);
    uint16_t next = 256;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool prints = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
      chars[byte] = prints ? static_cast<uint16_t>(byte) : next++;
      bytes[chars[byte]] = static_cast<int16_t>(byte);
    }
  }
};

constexpr ByteAlphabet kAlphabet;

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// Bytes of the valid character at `at`, or, negated, of the maximal bad part there.
int length_or_bad(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const int length = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  for (int i = 1; i < length; ++i) {
    const unsigned low = i > 1 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned high = i > 1 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (at + static_cast<size_t>(i) >= text.size()) return -i;
    const unsigned next = byte(static_cast<size_t>(i));
    if (next < low || next > high) return -i;
  }
  return length == 0 ? -1 : length;
}

}  // namespace

bool replace_invalid_utf8(std::string_view text, std::string& out) {
  if (is_utf8(text)) return false;
  std::string result;
  result.reserve(text.size() + text.size() / 8);
  for (size_t at = 0; at < text.size();) {
    const int length = length_or_bad(text, at);
    const auto bytes = static_cast<size_t>(length < 0 ? -length : length);
    result += length < 0 ? kReplacement : text.substr(at, bytes);
    at += bytes;
  }
  out = std::move(result);
  return true;
}

namespace tokenizer {

uint32_t char_of_byte(uint8_t byte) { return kAlphabet.chars[byte]; }
int byte_of_char(uint32_t c) { return c < kAlphabet.bytes.size() ? kAlphabet.bytes[c] : -1; }

}  // namespace tokenizer
}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/printable.h"

#include <algorithm>

#include "sfsdp/base/json.h"

namespace sfsdp::exported {
namespace {

// Bytes of the character that `text` begins with; 1 where it is no UTF-8.
size_t length_of(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const size_t length = lead < 0xc2 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  return length <= text.size() && is_utf8(text.substr(0, length)) ? length : 1;
}

// character: as length_of counts it
bool shows(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) >= 0x20 && byte(0) < 0x7f;
  if (character.size() == 2) return !(byte(0) == 0xc2 && byte(1) < 0xa0);  // U+0080 to U+009F
  if (character.size() > 3 || byte(0) != 0xe2) return true;
  const bool turns = byte(1) == 0x80 && (byte(2) == 0x8e || byte(2) == 0x8f || (byte(2) >= 0xa8 && byte(2) <= 0xae));
  return !turns && !(byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9);  // U+2066 to U+2069
}

std::string escaped(std::string_view bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
  }
  return out;
}

}  // namespace

bool is_printable(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, length_of(text.substr(at)));
    if (!shows(character)) return false;
    at += character.size();
  }
  return true;
}

std::string printable(std::string_view text, size_t most) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, length_of(text.substr(at)));
    if (at + character.size() > most) return out + "…";
    out += shows(character) ? std::string(character) : escaped(character);
    at += character.size();
  }
  return out;
}

}  // namespace sfsdp::exported

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <charconv>

namespace sfsdp::train::checkpoint {

uint64_t xxh3(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
uint64_t xxh3(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::optional<uint64_t> parse_hash(std::string_view text) {
  uint64_t value = 0;
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

}  // namespace sfsdp::train::checkpoint

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <charconv>

namespace sfsdp {

uint64_t xxh3(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
uint64_t xxh3(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

struct ContentHash::State {
  XXH3_state_t xxh3;
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh3); }
ContentHash::~ContentHash() = default;
ContentHash::ContentHash(ContentHash&&) noexcept = default;
ContentHash& ContentHash::operator=(ContentHash&&) noexcept = default;

void ContentHash::add(std::span<const uint8_t> bytes) { XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size()); }
void ContentHash::add(std::string_view text) { XXH3_64bits_update(&state_->xxh3, text.data(), text.size()); }
uint64_t ContentHash::value() const { return XXH3_64bits_digest(&state_->xxh3); }

std::optional<uint64_t> parse_hash(std::string_view text) {
  uint64_t value = 0;
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

}  // namespace sfsdp

// SPDX-License-Identifier: BSD-3-Clause
// XXH3, 64 bits, seed 0: the number that `xxhsum -H3` prints. It finds damage, it does not resist an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace sfsdp {

uint64_t xxh3(std::span<const std::byte> bytes);
uint64_t xxh3(std::string_view text);

// The same number of bytes that come in pieces.
class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(ContentHash&&) noexcept;
  ContentHash& operator=(ContentHash&&) noexcept;

  void add(std::span<const uint8_t> bytes);
  void add(std::string_view text);
  uint64_t value() const;  // of what was added so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 16 lower-case digits, as hex() writes them.
std::optional<uint64_t> parse_hash(std::string_view text);

}  // namespace sfsdp

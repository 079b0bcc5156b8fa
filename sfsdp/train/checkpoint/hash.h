// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace sfsdp::train::checkpoint {

// XXH3, 64 bits, seed 0: the number that `xxhsum -H3` prints.
uint64_t xxh3(std::span<const std::byte> bytes);
uint64_t xxh3(std::string_view text);

// 16 lower-case digits, as hex() writes them.
std::optional<uint64_t> parse_hash(std::string_view text);

}  // namespace sfsdp::train::checkpoint

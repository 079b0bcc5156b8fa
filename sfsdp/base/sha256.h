// SPDX-License-Identifier: BSD-3-Clause
// SHA-256 (FIPS 180-4) and HMAC over it (RFC 2104): what ranks prove to each other with.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace sfsdp {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte> data);
// hmac(key, message): nobody can compute it without the key, and it does not tell the key.
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);
// Takes as long whether they differ at the first byte or the last, so that time tells a guesser nothing.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace sfsdp

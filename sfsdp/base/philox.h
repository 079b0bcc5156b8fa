// SPDX-License-Identifier: BSD-3-Clause
// Philox4x32-10 (Salmon et al., SC'11): random numbers as a pure function of (key, counter), so that any element of any
// random tensor can be drawn alone, on any rank, in any order.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sfsdp {

// Four 32-bit words for a 64-bit key and a 128-bit counter (high, low).
constexpr std::array<uint32_t, 4> philox4x32(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                               static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// FNV-1a, 64 bits: the part of a key that comes from a parameter's or op's path.
constexpr uint64_t hash_path(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace sfsdp

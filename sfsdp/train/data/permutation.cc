// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/permutation.h"

#include <bit>

#include "sfsdp/base/check.h"
#include "sfsdp/base/philox.h"

namespace sfsdp::train {

namespace {

// The upper half of a product with an odd constant depends on all bits below it; twice, as one product leaves the lowest
// bits of x with little weight. Constants of splitmix64.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t key, int64_t epoch) : size_(size) {
  SFSDP_CHECK(size >= 1, "a permutation of ", size);
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(size) - 1));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
  for (uint64_t i = 0; i < kRounds; i += 2) {
    const auto words = philox4x32(key, hash_path("data order") ^ i, static_cast<uint64_t>(epoch));
    keys_[i] = words[0] | uint64_t{words[1]} << 32;
    keys_[i + 1] = words[2] | uint64_t{words[3]} << 32;
  }
}

uint64_t Permutation::scramble(uint64_t x) const {
  const uint64_t left_mask = (uint64_t{1} << left_bits_) - 1, right_mask = (uint64_t{1} << right_bits_) - 1;
  uint64_t left = x >> right_bits_, right = x & right_mask;
  for (int i = 0; i < kRounds; i += 2) {  // each line keeps one half, so it can be undone
    left ^= mix(right ^ keys_[static_cast<size_t>(i)]) & left_mask;
    right ^= mix(left ^ keys_[static_cast<size_t>(i + 1)]) & right_mask;
  }
  return left << right_bits_ | right;
}

int64_t Permutation::operator[](int64_t i) const {
  SFSDP_CHECK(i >= 0 && i < size_, i, " of ", size_);
  auto x = static_cast<uint64_t>(i);
  do x = scramble(x);
  while (x >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(x);
}

}  // namespace sfsdp::train

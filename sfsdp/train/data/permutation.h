// SPDX-License-Identifier: BSD-3-Clause
// A shuffle that is computed, not stored: where number i goes depends on (key, i) alone, so any rank may ask for any place
// after a restart.
#pragma once

#include <array>
#include <cstdint>

namespace sfsdp::train {

// A permutation of 0 .. size - 1 for each key and epoch, in O(1) memory.
//   Source: a Feistel network (Luby and Rackoff 1988) on the next power of two; numbers beyond size walk on along their
//   cycle until they are below it (Black and Rogaway 2002), less than two rounds on average.
class Permutation {
 public:
  Permutation(int64_t size, uint64_t key, int64_t epoch);
  int64_t operator[](int64_t i) const;

 private:
  uint64_t scramble(uint64_t x) const;  // a bijection of the numbers of left_bits_ + right_bits_ bits

  static constexpr int kRounds = 8;
  int64_t size_;
  int left_bits_ = 0, right_bits_ = 0;
  std::array<uint64_t, kRounds> keys_{};
};

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
// A stretch of a file in blocks, each with its hash, so that a part of it is checked without reading the rest.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/base/hash.h"

namespace sfsdp::train {

inline constexpr int64_t kHashedBlockBytes = 65536;

struct HashedBlocks {
  int64_t begin = 0, end = 0;    // bytes of the file
  std::vector<uint64_t> hashes;  // XXH3 of each kHashedBlockBytes from `begin` on; the last block ends at `end`

  // Where block `index` of hashes lies.
  struct Range {
    int64_t begin = 0, end = 0;
  };
  Range range(size_t index) const;
  // Block `index` is what was written there.
  //   bytes:  all of the block
  //   throws: UserError naming file and bytes
  void check(size_t index, std::span<const uint8_t> bytes, const std::string& file) const;
};

// Hashes of bytes that come in pieces. Between calls `block_` has the bytes of a block that is not full.
class BlockHasher {
 public:
  void add(std::span<const uint8_t> bytes);
  // The hashes of all that was added.
  std::vector<uint64_t> finish();

 private:
  void end_block();

  std::vector<uint64_t> hashes_;
  ContentHash block_;
  int64_t in_block_ = 0;  // bytes
};

}  // namespace sfsdp::train

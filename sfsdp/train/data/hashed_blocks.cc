// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/hashed_blocks.h"

#include <algorithm>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::train {

HashedBlocks::Range HashedBlocks::range(size_t index) const {
  const int64_t first = begin + static_cast<int64_t>(index) * kHashedBlockBytes;
  return {first, std::min(end, first + kHashedBlockBytes)};
}

void HashedBlocks::check(size_t index, std::span<const uint8_t> bytes, const std::string& file) const {
  if (xxh3(std::as_bytes(bytes)) == hashes.at(index)) return;
  const Range place = range(index);
  throw UserError(concat(file, ": bytes ", place.begin, " to ", place.end,
                         " are not what was written there\n  expected the hash at the end of the file; the file is "
                         "damaged, run sfsdp tokenize again"));
}

void BlockHasher::add(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), static_cast<size_t>(kHashedBlockBytes - in_block_)));
    block_.add(part);
    in_block_ += static_cast<int64_t>(part.size());
    if (in_block_ == kHashedBlockBytes) end_block();
    bytes = bytes.subspan(part.size());
  }
}

void BlockHasher::end_block() {
  hashes_.push_back(block_.value());
  block_ = ContentHash();
  in_block_ = 0;
}

std::vector<uint64_t> BlockHasher::finish() {
  if (in_block_ > 0) end_block();
  return std::exchange(hashes_, {});
}

}  // namespace sfsdp::train

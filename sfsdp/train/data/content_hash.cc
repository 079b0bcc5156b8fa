// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/content_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sfsdp::train {

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

}  // namespace sfsdp::train

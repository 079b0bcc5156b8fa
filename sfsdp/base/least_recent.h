// SPDX-License-Identifier: BSD-3-Clause
// Values by key, at most so many: a new one takes the place of the one that was used longest ago.
#pragma once

#include <algorithm>
#include <list>
#include <optional>
#include <utility>

namespace sfsdp {

// For tens of entries: a look-up is a walk. Pointers to values stay valid until the value goes.
template <class Key, class T>
class LeastRecent {
 public:
  using Entry = std::pair<Key, T>;

  explicit LeastRecent(size_t most) : most_(most) {}

  // Which counts as a use; nullptr: not there.
  T* find(const Key& key) {
    const auto found = std::ranges::find(entries_, key, &Entry::first);
    if (found == entries_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found);
    return &entries_.front().second;
  }
  // The key is not there yet. Returns what had to go, if something had.
  std::optional<Entry> insert(Key key, T value) {
    entries_.emplace_front(std::move(key), std::move(value));
    if (entries_.size() <= most_) return std::nullopt;
    std::optional<Entry> gone = std::move(entries_.back());
    entries_.pop_back();
    return gone;
  }
  size_t size() const { return entries_.size(); }

 private:
  size_t most_;
  std::list<Entry> entries_;  // the latest used first
};

}  // namespace sfsdp

// SPDX-License-Identifier: BSD-3-Clause
// The attributes of an op: values by name, in alphabetical order. An op has a few, so they lie side by side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "sfsdp/ir/type.h"

namespace sfsdp::ir {

// An attribute's value. monostate prints as `none`.
using Attr = std::variant<std::monostate, bool, int64_t, double, std::string, DType, std::vector<int64_t>,
                          std::vector<double>, std::vector<bool>, std::vector<std::string>>;

std::ostream& operator<<(std::ostream& out, const Attr& attr);

// The part of std::map's interface that ops need.
class Attrs {
 public:
  using Entry = std::pair<std::string, Attr>;
  using iterator = std::vector<Entry>::iterator;
  using const_iterator = std::vector<Entry>::const_iterator;

  Attrs() = default;
  // The first of two entries with one name stays, as in std::map.
  Attrs(std::initializer_list<Entry> entries) {
    for (const Entry& entry : entries) emplace(entry.first, entry.second);
  }

  iterator begin() { return entries_.begin(); }
  iterator end() { return entries_.end(); }
  const_iterator begin() const { return entries_.begin(); }
  const_iterator end() const { return entries_.end(); }
  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }

  // Few entries: a walk is faster than halving.
  iterator find(std::string_view name) { return std::ranges::find(entries_, name, &Entry::first); }
  const_iterator find(std::string_view name) const { return std::ranges::find(entries_, name, &Entry::first); }
  bool contains(std::string_view name) const { return find(name) != end(); }
  // throws: std::out_of_range
  Attr& at(std::string_view name) {
    const auto found = find(name);
    if (found == end()) throw std::out_of_range("no attribute " + std::string(name));
    return found->second;
  }
  const Attr& at(std::string_view name) const { return const_cast<Attrs*>(this)->at(name); }
  // `none` where it is new.
  Attr& operator[](std::string_view name);
  // Keeps the value that is there. Returns where it stands, and whether it is new.
  std::pair<iterator, bool> emplace(std::string_view name, Attr value);
  size_t erase(std::string_view name) {
    const auto found = find(name);
    if (found == end()) return 0;
    entries_.erase(found);
    return 1;
  }
  // Takes what is not there yet.
  void merge(const Attrs& others) {
    for (const auto& [name, value] : others) emplace(name, value);
  }
  bool operator==(const Attrs&) const = default;

 private:
  std::vector<Entry> entries_;  // sorted by name
};

}  // namespace sfsdp::ir

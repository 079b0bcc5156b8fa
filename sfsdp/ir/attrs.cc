// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/attrs.h"

namespace sfsdp::ir {

Attr& Attrs::operator[](std::string_view name) {
  const auto place = std::ranges::lower_bound(entries_, name, {}, &Entry::first);
  if (place != end() && place->first == name) return place->second;
  return entries_.emplace(place, name, std::monostate())->second;
}

std::pair<Attrs::iterator, bool> Attrs::emplace(std::string_view name, Attr value) {
  const size_t count = size();
  Attr& place = (*this)[name];
  const bool is_new = size() > count;
  if (is_new) place = std::move(value);
  return {find(name), is_new};
}

}  // namespace sfsdp::ir

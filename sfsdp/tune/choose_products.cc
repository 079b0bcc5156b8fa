// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/choose_products.h"

#include <algorithm>

namespace sfsdp::tune {

passes::ProductTable choose_products(const cost::ProductTimes& times, const std::string& rule) {
  passes::ProductTable table;
  for (const auto& [shape, seconds] : times) {
    if (seconds.empty()) continue;
    const auto fastest = std::ranges::min_element(seconds, {}, [](const auto& entry) { return entry.second; });
    auto usual = seconds.find(rule);
    if (usual == seconds.end()) usual = seconds.find("aten.mm");
    const bool stays = usual != seconds.end() && fastest->second >= usual->second * (1 - kLeastGain);
    table[shape] = stays ? usual->first : fastest->first;
  }
  return table;
}

}  // namespace sfsdp::tune

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/html_page.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp {

std::string html_page(std::string_view part, std::string_view data) {
  constexpr std::string_view kData = "/*DATA*/", kPart = "<!--PAGE-->";
  const std::string_view frame = page_frame();
  const size_t data_at = frame.find(kData), part_at = frame.find(kPart);
  SFSDP_CHECK(data_at != std::string_view::npos && part_at != std::string_view::npos, "the frame has no place");
  std::string page(frame.substr(0, data_at));
  for (const char c : data) {
    if (c == '<')
      page += "\\u003c";  // in JSON it stands in strings alone
    else
      page += c;
  }
  page += frame.substr(data_at + kData.size(), part_at - data_at - kData.size());
  return page.append(part).append(frame.substr(part_at + kPart.size()));
}

std::string page_number(double value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 64> text = {};
  const bool whole = std::abs(value) < 9e15 && value == std::nearbyint(value);
  std::snprintf(text.data(), text.size(), whole ? "%.0f" : "%.7g", value);
  return text.data();
}

size_t PageStrings::add(const std::string& text) {
  const auto [found, is_new] = index_.emplace(text, list_.size());
  if (is_new) list_.push_back(text);
  return found->second;
}

std::string PageStrings::json() const { return page_list(list_, json_quoted); }

}  // namespace sfsdp

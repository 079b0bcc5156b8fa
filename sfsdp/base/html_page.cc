// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/html_page.h"

#include "sfsdp/base/check.h"

namespace sfsdp {

std::string fill_page(std::string_view page, std::string_view data) {
  constexpr std::string_view kMark = "/*DATA*/";
  const size_t mark = page.find(kMark);
  SFSDP_CHECK(mark != std::string_view::npos, "the page holds no ", kMark);
  std::string filled(page.substr(0, mark));
  for (const char c : data) {
    if (c == '<')
      filled += "\\u003c";  // in JSON it stands in strings alone
    else
      filled += c;
  }
  return filled.append(page.substr(mark + kMark.size()));
}

}  // namespace sfsdp

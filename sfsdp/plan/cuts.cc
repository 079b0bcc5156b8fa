// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/cuts.h"

#include <algorithm>
#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::plan {

std::vector<MemberCut> parse_member_cuts(const std::string& text) {
  std::vector<MemberCut> cuts;
  if (text.empty()) return cuts;
  for (const std::string& part : split(text, ',')) {
    const size_t slash = part.find('/');
    const auto dim = parse_int(std::string_view(part).substr(0, slash));
    SFSDP_CHECK(slash != std::string::npos && dim && *dim >= 0 && slash + 1 < part.size(), '"', text,
                "\" says no dimension and axis, such as 0/tp");
    const size_t colon = part.find(':', slash);
    const auto whole =
        colon == std::string::npos ? int64_t{0} : parse_int(std::string_view(part).substr(colon + 1)).value_or(0);
    SFSDP_CHECK(colon == std::string::npos || whole > 0, '"', text, "\" says no size after :, such as 0/tp:5");
    cuts.push_back({*dim, part.substr(slash + 1, colon == std::string::npos ? colon : colon - slash - 1), whole});
  }
  return cuts;
}

std::string to_string(const std::vector<MemberCut>& cuts) {
  std::vector<std::string> texts;
  for (const MemberCut& cut : cuts)
    texts.push_back(concat(cut.dim, '/', cut.axis, cut.whole > 0 ? concat(':', cut.whole) : ""));
  return join(texts, ",");
}

std::vector<Cut> cuts_of_member(const ir::Op& param, size_t member) {
  const auto* texts = param.find_attr<std::vector<std::string>>("cuts");
  if (!texts) return {};
  std::vector<Cut> cuts;
  for (const MemberCut& cut : parse_member_cuts(texts->at(member))) {
    cuts.resize(std::max(cuts.size(), static_cast<size_t>(cut.dim) + 1));
    cuts[static_cast<size_t>(cut.dim)].axes.push_back(cut.axis);
  }
  return cuts;
}

}  // namespace sfsdp::plan

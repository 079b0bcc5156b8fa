// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/cuts.h"

#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::plan {

MemberCut parse_member_cut(const std::string& text) {
  if (text.empty()) return {};
  const size_t slash = text.find('/');
  const auto dim = parse_int(std::string_view(text).substr(0, slash));
  SFSDP_CHECK(slash != std::string::npos && dim && *dim >= 0 && slash + 1 < text.size(), '"', text,
              "\" says no dimension and axis, such as 0/tp");
  return {*dim, text.substr(slash + 1)};
}

std::string to_string(const MemberCut& cut) { return cut.dim < 0 ? "" : concat(cut.dim, '/', cut.axis); }

std::vector<Cut> cuts_of_member(const ir::Op& param, size_t member) {
  const auto* texts = param.find_attr<std::vector<std::string>>("cuts");
  const MemberCut cut = texts ? parse_member_cut(texts->at(member)) : MemberCut();
  if (cut.dim < 0) return {};
  std::vector<Cut> cuts(static_cast<size_t>(cut.dim) + 1);
  cuts.back().axes = {cut.axis};
  return cuts;
}

}  // namespace sfsdp::plan

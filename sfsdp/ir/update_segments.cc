// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/update_segments.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/axis_attr.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::ir {
namespace {

// Entry `segment` of a list, or the one number that holds for all.
double number_at(const Op& op, const char* key, size_t segment, double fallback) {
  if (const auto* list = op.find_attr<std::vector<double>>(key)) return list->at(segment);
  return number_of(op, key, fallback);
}

bool same_numbers(const UpdateSegment& a, const UpdateSegment& b) {
  return a.weight_decay == b.weight_decay && a.lr_factor == b.lr_factor;
}

// One number where all segments have the same, else a list.
Attr number_or_list(std::span<const UpdateSegment> segments, double UpdateSegment::*field) {
  std::vector<double> list;
  for (const UpdateSegment& segment : segments) list.push_back(segment.*field);
  if (std::ranges::adjacent_find(list, std::ranges::not_equal_to()) == list.end()) return list[0];
  return list;
}

}  // namespace

std::vector<UpdateSegment> update_segments(const Op& update, int64_t first, int64_t numel) {
  const auto begins = update.attr_or<std::vector<int64_t>>("begins", {0});
  std::vector<UpdateSegment> segments;
  for (size_t i = 0; i < begins.size(); ++i) {
    const int64_t begin = std::max(begins[i] - first, int64_t{0});
    const int64_t end = i + 1 < begins.size() ? std::min(begins[i + 1] - first, numel) : numel;
    if (begin < end || begins.size() == 1)
      segments.push_back({begin, end, number_at(update, "weight_decay", i, 0), number_at(update, "lr_factor", i, 1)});
  }
  return segments;
}

void set_update_segments(Attrs& attrs, std::span<const UpdateSegment> segments, const std::vector<std::string>& axes) {
  SFSDP_CHECK(!segments.empty(), "an update of nothing");
  std::vector<UpdateSegment> merged;
  std::vector<int64_t> begins;
  for (const UpdateSegment& segment : segments) {
    if (!merged.empty() && same_numbers(merged.back(), segment)) continue;
    merged.push_back(segment);
    begins.push_back(segment.begin);
  }
  for (const char* key : {"begins", "axis", "lr_factor"}) attrs.erase(key);
  attrs["weight_decay"] = number_or_list(merged, &UpdateSegment::weight_decay);
  const Attr factor = number_or_list(merged, &UpdateSegment::lr_factor);
  if (factor != Attr(1.0)) attrs["lr_factor"] = factor;
  if (merged.size() == 1) return;
  attrs["begins"] = begins;
  if (!axes.empty()) attrs["axis"] = axis_attr(axes);
}

}  // namespace sfsdp::ir

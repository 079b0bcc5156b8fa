// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/device/fake/conflicts.h"

#include <algorithm>
#include <iterator>

namespace sfsdp::device {

void join(Clock& clock, const Clock& other) {
  for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

void Conflicts::split(const std::byte* at) {
  auto after = segments_.upper_bound(at);
  if (after == segments_.begin()) {
    segments_.emplace(at, Segment());
    return;
  }
  const auto it = std::prev(after);
  if (it->first != at) segments_.emplace_hint(after, at, Segment(it->second));
}

std::vector<std::string> Conflicts::note(const Bytes& bytes, bool writes, const Access& access, const Clock& clock) {
  std::vector<std::string> others;
  if (bytes.size == 0) return others;
  const auto expect_over = [&](const Access& other) {
    if (other.time == 0 || other.lane == access.lane || clock[other.lane] >= other.time) return;
    if (std::ranges::find(others, other.name) == others.end()) others.push_back(other.name);
  };
  split(bytes.begin);
  split(bytes.begin + bytes.size);
  const auto end = segments_.find(bytes.begin + bytes.size);
  for (auto it = segments_.find(bytes.begin); it != end; ++it) {
    Segment& segment = it->second;
    expect_over(segment.write);
    if (writes) {
      for (const Access& read : segment.reads) expect_over(read);
      segment = {access, {}};
    } else if (const auto own = std::ranges::find(segment.reads, access.lane, &Access::lane);
               own != segment.reads.end()) {
      *own = access;
    } else {
      segment.reads.push_back(access);
    }
  }
  return others;
}

}  // namespace sfsdp::device

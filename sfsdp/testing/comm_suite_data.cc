// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/comm_suite_data.h"

#include <algorithm>
#include <cstring>

namespace sfsdp::testing {

Bytes contribution(int rank, size_t bytes) {
  uint64_t state = 0x9e3779b97f4a7c15ULL * static_cast<uint64_t>(rank + 1) + bytes;
  Bytes data(bytes);
  for (size_t at = 0; at < bytes; at += sizeof state) {  // eight bytes a step: large cases draw some GiB
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const uint64_t drawn = state ^ state >> 32;  // low bits of the state alone have short periods
    std::memcpy(data.data() + at, &drawn, std::min(sizeof drawn, bytes - at));
  }
  return data;
}

void check_equal(std::span<const std::byte> got, const Bytes& expected, const std::string& what) {
  if (got.size() == expected.size() && (got.empty() || std::memcmp(got.data(), expected.data(), got.size()) == 0))
    return;
  const auto [g, e] = std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  SFSDP_CHECK(false, what, ": byte ", g - got.begin(), " of ", got.size(), " differs, ", expected.size(), " expected");
}

}  // namespace sfsdp::testing

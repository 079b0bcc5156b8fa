// SPDX-License-Identifier: BSD-3-Clause
// What a piece of code takes, counted by the kernel: the most pages that the process ever had.
#pragma once

#include <cstdint>
#include <functional>

namespace sfsdp::testing {

inline constexpr int64_t kMib = 1 << 20;

// A sanitizer keeps what was freed, and has pages of its own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// By how many bytes the process has grown at its largest while `body` ran, give or take what the kernel counts in batches of
// pages per core (below 1 MiB on 2 cores).
//   throws: UserError where /proc/self does not tell
int64_t growth(const std::function<void()>& body);

}  // namespace sfsdp::testing

// SPDX-License-Identifier: BSD-3-Clause
// Numbers of the zip format (APPNOTE.TXT 6.3), for what reads archives and what writes them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sfsdp::exported {

inline constexpr uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kEnd = 0x06054b50;
inline constexpr uint32_t kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50, kDescriptor = 0x08074b50;
inline constexpr size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20;
inline constexpr uint32_t kWide = 0xffffffff;  // instead of a number that does not fit: it stands in the ZIP64 field
inline constexpr uint16_t kZip64Extra = 1;     // that field

}  // namespace sfsdp::exported

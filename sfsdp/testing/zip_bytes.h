// SPDX-License-Identifier: BSD-3-Clause
// Zip files of stored entries as bytes, for tests that damage them.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sfsdp::testing {

using ZipParts = std::vector<std::pair<std::string, std::string>>;  // name, bytes

inline void append_number(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += i < 8 ? static_cast<char>(value >> (8 * i) & 0xff) : '\0';
}

// Local headers with their bytes, the directory, the end record; no ZIP64.
inline std::string zip_of(const ZipParts& parts) {
  std::string out, directory;
  for (const auto& [name, bytes] : parts) {
    const size_t header = out.size();
    const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
    const auto common = [&](std::string& to) {
      append_number(to, 0, 2);  // flags
      append_number(to, 0, 2);  // stored
      append_number(to, 0, 4);  // time
      append_number(to, crc, 4);
      append_number(to, bytes.size(), 4);
      append_number(to, bytes.size(), 4);
      append_number(to, name.size(), 2);
      append_number(to, 0, 2);  // extra
    };
    append_number(out, 0x04034b50, 4);
    append_number(out, 20, 2);
    common(out);
    out += name + bytes;
    append_number(directory, 0x02014b50, 4);
    append_number(directory, 20, 2);
    append_number(directory, 20, 2);
    common(directory);
    append_number(directory, 0, 2 + 2 + 2 + 4);  // comment, disk, attributes
    append_number(directory, header, 4);
    directory += name;
  }
  const size_t begin = out.size();
  out += directory;
  append_number(out, 0x06054b50, 4);
  append_number(out, 0, 2 + 2);
  append_number(out, parts.size(), 2);
  append_number(out, parts.size(), 2);
  append_number(out, directory.size(), 4);
  append_number(out, begin, 4);
  append_number(out, 0, 2);
  return out;
}

}  // namespace sfsdp::testing

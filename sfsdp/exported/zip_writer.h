// SPDX-License-Identifier: BSD-3-Clause
// Writes a zip file whose entries are stored as they are, each one's bytes on a 64-byte boundary, as torch.save and
// torch.export.save write them. All sizes and places are written in ZIP64's fields, so that a file of a few bytes has the
// form of one of hundreds of gigabytes.
// Source: PKWARE's APPNOTE 6.3.10 (local headers, central directory, ZIP64).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sfsdp::exported {

// Puts bytes at a place of the file; places are not asked for in order.
using WriteBytes = std::function<void(std::span<const std::byte> bytes, uint64_t offset)>;

// Takes one entry after the other, and is over with `finish`.
class ZipWriter {
 public:
  explicit ZipWriter(WriteBytes write) : write_(std::move(write)) {}

  void add(const std::string& name, std::string_view text);
  // An entry of `bytes` bytes, which `append` brings in as many parts as it likes before the next entry begins.
  void begin(const std::string& name, uint64_t bytes);
  void append(std::span<const std::byte> part);
  // Writes the directory. Nothing is added afterwards.
  void finish();

 private:
  struct Entry {
    std::string name;
    uint64_t header = 0, offset = 0, bytes = 0;  // where its header and its bytes begin
    uint32_t crc32 = 0;
  };
  void end_entry();
  std::string local_header(const Entry& entry) const;

  WriteBytes write_;
  std::vector<Entry> entries_;
  uint64_t end_ = 0;  // of what was written
};

// The whole file in memory, for a small one.
//   fill: adds the entries
std::string zip_in_memory(const std::function<void(ZipWriter& zip)>& fill);

}  // namespace sfsdp::exported

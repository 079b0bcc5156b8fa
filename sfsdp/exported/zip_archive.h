// SPDX-License-Identifier: BSD-3-Clause
// Reads a zip file whose entries are stored as they are, which is what torch.export.save writes. Fails closed: compressed,
// encrypted and overlapping entries are refused when the archive is opened, so a small file cannot ask for much memory, and
// no entry shows bytes of another. Files are read with pread and never mapped. A file that is written to after it was opened
// is refused: its weights would not be those of its headers.
// Source: PKWARE's APPNOTE 6.3.10 (local headers, central directory, ZIP64).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/base/fd.h"

namespace sfsdp::exported {

struct ZipEntry {
  std::string name;     // with all folders: "model/data/weights/weight_0"
  uint64_t offset = 0;  // of its first byte in the file
  uint64_t bytes = 0;
  uint32_t crc32 = 0;  // as the central directory has it
  // Where the file says it, for whoever writes other bytes of the same length: offsets of four bytes each.
  std::vector<uint64_t> crc32_places = {};
};

// What a write to a file changes.
struct FileState {
  int64_t bytes = 0, seconds = 0, nanoseconds = 0;  // the time of its last change
  bool operator==(const FileState&) const = default;
};

class ZipArchive {
 public:
  enum class Writes : uint8_t {
    Refused,
    Expected
  };  // to the file while it is open: Expected for whoever writes to it himself

  // throws: UserError naming file, entry, expected and got
  static ZipArchive open(const std::string& path, Writes writes = Writes::Refused);

  const std::string& path() const { return path_; }
  const std::vector<ZipEntry>& entries() const { return entries_; }  // in the order of their bytes
  const ZipEntry* find(std::string_view name) const;

  // Copies the entry's bytes [first, first + out.size()). From any thread.
  //   throws: UserError naming the entry where the file has another size or time of change than when it was opened
  void read(const ZipEntry& entry, uint64_t first, std::span<std::byte> out) const;
  // All of an entry, held against its CRC.  throws: UserError, also above max_bytes
  std::string read_text(const ZipEntry& entry, uint64_t max_bytes) const;

 private:
  ZipArchive(std::string path, Fd file, std::optional<FileState> opened)
      : path_(std::move(path)), file_(std::move(file)), opened_(opened) {}

  std::string path_;
  Fd file_;
  std::optional<FileState> opened_;  // none: writes are expected
  std::vector<ZipEntry> entries_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace sfsdp::exported

// SPDX-License-Identifier: BSD-3-Clause
// Reads text that may be compressed, piece by piece.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace sfsdp::train {

// What a write to a file changes, unless it falls into one tick of the clock with the write before.
struct FileStamp {
  int64_t bytes = 0, modified_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

// None, and errno, for a path that has no file.
std::optional<FileStamp> stamp_of(const std::string& path);

// The bytes of a file from begin to end, decompressed if its name ends in .gz or .zst.
class InputFile {
 public:
  //   throws: UserError naming a file that cannot be opened or is none
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(InputFile&&) noexcept;
  InputFile& operator=(InputFile&&) noexcept;

  // Fills the front of `out`; 0 at the end.
  //   throws: UserError naming a file that cannot be read, whose compressed data is damaged or cut off
  size_t read(std::span<char> out);
  FileStamp stamp() const;     // of the open file, now
  int64_t bytes_read() const;  // of those on disk

  // "a.jsonl" of "a.jsonl.gz".
  static std::string name_without_compression(const std::string& path);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sfsdp::train

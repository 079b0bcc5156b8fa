// SPDX-License-Identifier: BSD-3-Clause
// A file that grows while a run lasts, and is whole up to its last write if the process dies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sfsdp::train {

class AppendFile {
 public:
  // Opens `path` to write after what it holds; makes the folders and the file if need be.
  //   throws: UserError naming the path, what the system says and --job.dump_folder
  explicit AppendFile(std::string path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // In one system call where the disk has room.  throws: UserError
  void write(std::string_view bytes);
  // Keeps the first `size` bytes.  throws: UserError
  void truncate(int64_t size);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace sfsdp::train

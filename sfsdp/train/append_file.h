// SPDX-License-Identifier: BSD-3-Clause
// A file that grows while a run lasts, and is whole up to its last write if the process dies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sfsdp/base/fd.h"

namespace sfsdp::train {

class AppendFile {
 public:
  // Opens `path` to write after what it holds; makes the folders and the file if need be.
  //   throws: UserError naming the path, what the system says and --job.dump_folder
  explicit AppendFile(std::string path);

  // In one system call where the disk has room.  throws: UserError
  void write(std::string_view bytes);
  // Keeps the first `size` bytes.  throws: UserError
  void truncate(int64_t size);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Fd fd_;
};

}  // namespace sfsdp::train

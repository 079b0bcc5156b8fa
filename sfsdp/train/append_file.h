// SPDX-License-Identifier: BSD-3-Clause
// A file of records that grows while a run lasts, and is whole up to its last record if the process dies. A run does not end
// because its disk is full: records that cannot be written are dropped and counted, and the next one is tried again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "sfsdp/base/fd.h"

namespace sfsdp::train {

// Takes a line for the log of the run.
using Say = std::function<void(const std::string& line)>;

// Whole, until a record cannot be written: then that is said, once; whole again with the first that can be, and that is said.
class AppendFile {
 public:
  // Opens `path` to write after what it holds; makes the folders and the file if need be. A full disk is no error: the file
  // is opened with the first record that finds room.
  //   throws: UserError naming the path, what the system says and --job.dump_folder; also for a pipe
  AppendFile(std::string path, Say say);

  // One record, in one system call where the disk has room. Nothing stays in the file of one that does not fit.
  //   returns: whether it is written
  bool write(std::string_view record);
  // Keeps the first `size` bytes.  throws: UserError
  void truncate(int64_t size);
  // Records that could not be written.
  int64_t dropped() const { return dropped_; }
  const std::string& path() const { return path_; }

 private:
  bool open();
  bool cut_torn_record();

  std::string path_;
  Say say_;
  Fd fd_;
  int64_t dropped_ = 0;
  int64_t torn_at_ = -1;  // where a part of a record stands that could not be cut off; -1: none
  bool failing_ = false;  // the last record was dropped
};

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::train {
namespace {

[[noreturn]] void fail(const std::string& path, int error) {
  throw UserError(
      concat(path, ": ", std::strerror(error), "\n  expected a file that can be written; set --job.dump_folder"));
}

// What passes when somebody makes room; all else is a wrong path.
bool is_full(int error) { return error == ENOSPC || error == EDQUOT; }

// To open a pipe waits until somebody reads it, and nothing that it has got can be cut off again.
void refuse_pipe(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0 && S_ISFIFO(found.st_mode))
    throw UserError(concat(path,
                           ": is a pipe\n  expected a file: a run that goes on cuts off what it writes again; remove "
                           "it, or set --job.dump_folder"));
}

}  // namespace

AppendFile::AppendFile(std::string path, Say say) : path_(std::move(path)), say_(std::move(say)) {
  refuse_pipe(path_);
  if (!open() && !is_full(errno)) fail(path_, errno);
}

// False: errno says why.
bool AppendFile::open() {
  if (fd_) return true;
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (!error) fd_ = Fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (error) errno = error.value();
  return static_cast<bool>(fd_);
}

bool AppendFile::cut_torn_record() {
  if (torn_at_ >= 0 && ::ftruncate(fd_.get(), torn_at_) != 0) return false;
  torn_at_ = -1;
  return true;
}

bool AppendFile::write(std::string_view record) {
  bool written = open() && cut_torn_record();
  struct stat before {};
  if (written && ::fstat(fd_.get(), &before) == 0 && !write_fully(fd_.get(), std::as_bytes(std::span(record)))) {
    written = false;
    const int error = errno;
    torn_at_ = before.st_size;
    cut_torn_record();
    errno = error;
  }
  if (!written) {
    ++dropped_;
    if (!std::exchange(failing_, true))
      say_(concat(path_, ": ", std::strerror(errno),
                  "; training goes on, what cannot be written is dropped until there is room again"));
  } else if (std::exchange(failing_, false)) {
    say_(concat(path_, ": is written again; ", dropped_, dropped_ == 1 ? " record is" : " records are", " missing"));
  }
  return written;
}

void AppendFile::truncate(int64_t size) {
  if (fd_ && ::ftruncate(fd_.get(), size) != 0) fail(path_, errno);
}

}  // namespace sfsdp::train

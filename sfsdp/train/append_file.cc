// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::train {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw UserError(concat(path, ": ", why, "\n  expected a file that can be written; set --job.dump_folder"));
}

}  // namespace

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) fail(path_, error.message());
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(path_, std::strerror(errno));
}

AppendFile::~AppendFile() { ::close(fd_); }

// A short write (disk full, then space again) goes on where it stopped.
void AppendFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path_, std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void AppendFile::truncate(int64_t size) {
  if (::ftruncate(fd_, size) != 0) fail(path_, std::strerror(errno));
}

}  // namespace sfsdp::train

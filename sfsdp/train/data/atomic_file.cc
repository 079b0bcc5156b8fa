// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/fd.h"

namespace sfsdp::train {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw UserError(concat(path, ": cannot ", what, ": ", std::strerror(error),
                         "\n  expected a folder that can be written, on a disk with space"));
}

}  // namespace

void sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const Fd fd(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) fail(path, "sync its folder", errno);
}

void write_atomically(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp";
  {
    const Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!fd) fail(path, "create", errno);
    const char* failed = !write_fully(fd.get(), std::as_bytes(std::span(text))) ? "write"
                         : ::fsync(fd.get()) != 0                               ? "fsync"
                                                                                : nullptr;
    if (failed) {
      const int error = errno;
      ::unlink(temporary.c_str());
      fail(path, failed, error);
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail(path, "rename", errno);
  sync_folder_of(path);
}

}  // namespace sfsdp::train

// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::train {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw UserError(concat(path, ": cannot ", what, ": ", std::strerror(error),
                         "\n  expected a folder that can be written, on a disk with space"));
}

}  // namespace

void sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!synced) fail(path, "sync its folder", error);
}

void write_atomically(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) fail(path, "create", errno);
  const char* failed = nullptr;
  for (size_t done = 0; done < text.size() && !failed;) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote >= 0)
      done += static_cast<size_t>(wrote);
    else if (errno != EINTR)
      failed = "write";
  }
  if (!failed && ::fsync(fd) != 0) failed = "fsync";
  const int error = errno;
  ::close(fd);
  if (failed) {
    ::unlink(temporary.c_str());
    fail(path, failed, error);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail(path, "rename", errno);
  sync_folder_of(path);
}

}  // namespace sfsdp::train
